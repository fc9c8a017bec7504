package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/k3infer/k3/presets"
)

func TestErrorsAreSaidInPlainWords(t *testing.T) {
	_, number := strconv.Atoi("x")
	_, large := strconv.ParseInt("99999999999999999999", 10, 64)
	var request struct {
		Text string `json:"text"`
		List []struct {
			N int `json:"n"`
		} `json:"list"`
	}
	open := func(path string) error { return &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission} }
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("core: open: %w", fmt.Errorf("experts: make policy %q: none", "x")), `make policy "x": none`},
		{fmt.Errorf("core: generate: %w", errors.New("the prompt is empty")), "the prompt is empty"},
		{fmt.Errorf("session: write d: %w", errors.New("disk: write d: no room")), "write d: no room"},
		{errors.New("session: session: not a session"), "session: not a session"},
		{errors.New("hub: disk: 3 bytes too few"), "disk: 3 bytes too few"},
		{Usagef("--memory: %w", errors.New("none")), "--memory: none"},
		{fmt.Errorf("%w: my.yaml:1: memory: must be a section", presets.ErrConfig), "configuration: my.yaml:1: memory: must be a section"},
		{fmt.Errorf("disk: create a/r: %w", open("a/.r.1891514277.partial")), "create a/r: permission denied"},
		{fmt.Errorf("disk: write d: %w", &os.LinkError{Op: "rename", Old: "./.d.36428.partial", New: "d", Err: fs.ErrExist}),
			"write d: file already exists"},
		{fmt.Errorf("read d: %w", open("d")), "read d: permission denied"},
		{open("a b"), "open a b: permission denied"},
		{&fs.PathError{Op: "GetFileAttributesEx", Path: "x", Err: fs.ErrNotExist}, "x: file does not exist"},
		{&fs.PathError{Op: "read", Path: "x", Err: io.ErrUnexpectedEOF}, "read x: it ends too early"},
		{fmt.Errorf("line 1: %w", number), `line 1: "x" is not a number`},
		{large, `"99999999999999999999" is out of range`},
		{json.Unmarshal([]byte(`{"text":5}`), &request), "text: a number where a string is needed"},
		{json.Unmarshal([]byte(`[1]`), &request), "a list where an object is needed"},
		{json.Unmarshal([]byte(`{"list":[{"n":true}]}`), &request), "list.n: true or false where a whole number is needed"},
		{fmt.Errorf("core: pass: layer 3: %w", context.Canceled), "interrupted"},
		{errors.Join(fmt.Errorf("core: pass: %w", context.Canceled), errors.New("disk: write x: no room")), "interrupted; write x: no room"},
		{fmt.Errorf("hub: %w", errors.Join(errors.New("a: too short"), errors.New("b: too short"))), "a: too short; b: too short"},
		{open("a\nb"), `open a\nb: permission denied`},
	} {
		if got := OneLine(c.err); got != c.want {
			t.Errorf("%q is said as %q, want %q", c.err, got, c.want)
		}
	}
}

// An error of any package may reach the user.
func TestThePrefixesAreThoseOfThePackages(t *testing.T) {
	begins := regexp.MustCompile(`^"([a-z]+): `)
	for _, root := range []string{"../../../../core", "../../../../policies", "../../../../backends", "../../../../conformance", "../../../../presets"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "_gen") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "Errorf" && f.Sel.Name != "New" {
					return true
				}
				for _, argument := range call.Args {
					text, ok := argument.(*ast.BasicLit)
					if !ok {
						continue
					}
					m := begins.FindStringSubmatch(text.Value)
					if m != nil && m[1] == file.Name.Name && !slices.Contains(PackageNames(), m[1]) {
						t.Errorf("%s: what begins %s is not among the prefixes that OneLine leaves out", path, m[0])
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
