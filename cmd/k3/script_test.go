package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
)

// unintelligible is what only the program's authors understand: names of packages and types of Go, its way to print them, errors
// of its library, line breaks that were escaped, files under way.
var unintelligible = regexp.MustCompile(`(?m)(^k3: |: |; )(` + strings.Join(ui.PackageNames(), "|") + `): |` +
	`strconv|(^k3: |: )json: |Go (value|struct)|struct \{|interface|\*\w+\.|context (canceled|deadline)|unexpected EOF|\\n|\.partial|%!|<nil>|map\[|` +
	`0x[0-9a-f]{8}|goroutine|runtime error|errno|syscall|^k3: (stat|lstat|CreateFile|GetFileAttributes)|\[[a-z0-9]+( [a-z0-9]+)+\]|` +
	`(?i:cancelled|aborted)`)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"k3": main})
}

// TestScripts runs testdata/script/*.txtar. Besides the commands of testscript they know
//
//	fails CODE k3 ARGS...       the exit code is CODE, nothing is on stdout, and stderr has lines "k3: ..." in plain words
//	write FILE GOSTRING         writes the bytes of a quoted Go string, which need not be text
//	joined FILE FILE NEW        writes the ids of two files to a new one
//	size FILE BYTES             FILE has that many bytes
//	edit FILE OLD NEW           replaces all OLD by NEW, in a safetensors file in its header
//	hole FILE BYTES             FILE has that many bytes, none of which takes room
//	safetensors FILE HEADER GOSTRING   writes a safetensors file with that header and the bytes as data
//
// and the condition [fixtures], that the public test data is at $FIXTURES.
func TestScripts(t *testing.T) {
	fixtures, err := filepath.Abs("../../../shared/fixtures")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(env *testscript.Env) error {
			env.Setenv("FIXTURES", fixtures)
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name != "fixtures" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			_, err := os.Stat(fixtures)
			return err == nil, nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"fails": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: fails CODE COMMAND ARGS...")
				}
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				code := 0
				if err := ts.Exec(args[1], args[2:]...); err != nil {
					exit := &exec.ExitError{}
					if !errors.As(err, &exit) {
						ts.Fatalf("%v", err)
					}
					code = exit.ExitCode()
				}
				if code != want {
					ts.Fatalf("exit code %d, want %d", code, want)
				}
				if out := ts.ReadFile("stdout"); out != "" {
					ts.Fatalf("stdout: %q", out)
				}
				if found := unintelligible.FindString(ts.ReadFile("stderr")); found != "" {
					ts.Fatalf("a user cannot know what %q is", found)
				}
				for _, line := range strings.Split(strings.TrimSuffix(ts.ReadFile("stderr"), "\n"), "\n") {
					if !strings.HasPrefix(line, "k3: ") {
						ts.Fatalf("a line of stderr is no message: %q", line)
					}
				}
			},
			"write": func(ts *testscript.TestScript, neg bool, args []string) {
				data, err := strconv.Unquote(`"` + args[1] + `"`)
				ts.Check(err)
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(data), 0o600))
			},
			"joined": func(ts *testscript.TestScript, neg bool, args []string) {
				a, b := strings.TrimSuffix(ts.ReadFile(args[0]), "\n"), ts.ReadFile(args[1])
				ts.Check(os.WriteFile(ts.MkAbs(args[2]), []byte(a+","+b), 0o600))
			},
			"size": func(ts *testscript.TestScript, neg bool, args []string) {
				info, err := os.Stat(ts.MkAbs(args[0]))
				ts.Check(err)
				if got := strconv.FormatInt(info.Size(), 10); got != args[1] {
					ts.Fatalf("%s has %s bytes, want %s", args[0], got, args[1])
				}
			},
			"edit": func(ts *testscript.TestScript, neg bool, args []string) {
				data := []byte(ts.ReadFile(args[0]))
				if !bytes.Contains(data, []byte(args[1])) {
					ts.Fatalf("%s has no %q", args[0], args[1])
				}
				if strings.HasSuffix(args[0], ".safetensors") {
					end := 8 + binary.LittleEndian.Uint64(data)
					header := bytes.ReplaceAll(data[8:end], []byte(args[1]), []byte(args[2]))
					rest := data[end:]
					data = binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
					data = append(append(data, header...), rest...)
				} else {
					data = bytes.ReplaceAll(data, []byte(args[1]), []byte(args[2]))
				}
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), data, 0o600))
			},
			"hole": func(ts *testscript.TestScript, neg bool, args []string) {
				bytes, err := strconv.ParseInt(args[1], 10, 64)
				ts.Check(err)
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), nil, 0o600))
				ts.Check(os.Truncate(ts.MkAbs(args[0]), bytes))
			},
			"safetensors": func(ts *testscript.TestScript, neg bool, args []string) {
				data, err := strconv.Unquote(`"` + args[2] + `"`)
				ts.Check(err)
				file := binary.LittleEndian.AppendUint64(nil, uint64(len(args[1])))
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), append(append(file, args[1]...), data...), 0o600))
			},
		},
	})
}
