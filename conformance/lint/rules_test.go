// Package lint holds the rules of the project that a machine can check, as tests. A rule that people must remember is
// broken sooner or later; what these tests say is what docs/design.md and docs/numerics.md promise.
package lint

import (
	"bufio"
	"bytes"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/k3infer/k3/"
)

// source is one parsed Go file.
type source struct {
	path string // slash-separated, relative to the root
	dir  string
	fset *token.FileSet
	file *ast.File
}

// sources parses the Go files below the folders that are not tests, generators or test data.
func sources(t *testing.T, folders ...string) []source {
	t.Helper()
	var all []source
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				if name := d.Name(); strings.HasPrefix(name, "_") || name == "testdata" {
					return filepath.SkipDir
				}
				return nil
			}
			if !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
				return nil
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, p, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, p)
			if err != nil {
				return err
			}
			rel = filepath.ToSlash(rel)
			all = append(all, source{rel, path.Dir(rel), fset, f})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(all) == 0 {
		t.Fatalf("no Go files in %v", folders)
	}
	return all
}

// imports are the packages of the module that a file imports, relative to the module.
func (s source) imports() []string {
	var all []string
	for _, i := range s.file.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		if rest, ok := strings.CutPrefix(p, module); ok {
			all = append(all, rest)
		}
	}
	return all
}

// units are the parts of the project from the bottom up. A unit is a folder and what lies below it; it may import units of
// a lower level only.
var units = []struct {
	level int
	dir   string
}{
	{0, "core/internal"},
	{1, "core/kernel"}, {1, "core/memory"},
	{2, "core/disk"},
	{3, "core/checksum"},
	{4, "core/checkpoint"}, {4, "core/tokenizer"}, {4, "core/sample"},
	{5, "core/hub"}, {5, "core/tape"}, {5, "core/pack"}, {5, "core/experts"}, {5, "core/chat"},
	{6, "core/graph"}, {6, "core/verify"},
	{7, "core/estimate"}, {7, "core/session"}, {7, "core/speculate"},
	{8, "core"},
	{9, "core/conversation"}, {9, "backends"}, {9, "policies"}, {9, "presets"},
	{10, "conformance"},
	{11, "cmd"},
}

// unitOf is the unit a package belongs to, "core" being the package itself only, and its level.
func unitOf(dir string) (string, int) {
	for _, u := range units {
		if dir == u.dir || u.dir != "core" && strings.HasPrefix(dir, u.dir+"/") {
			return u.dir, u.level
		}
	}
	return "", -1
}

func TestImportsPointDownwards(t *testing.T) {
	for _, s := range sources(t, "core", "backends", "policies", "presets", "conformance", "cmd") {
		unit, level := unitOf(s.dir)
		if level < 0 {
			t.Errorf("%s: package %s has no place among the units of this test and docs/design.md", s.path, s.dir)
			continue
		}
		for _, i := range s.imports() {
			other, below := unitOf(i)
			if other != unit && below >= level {
				t.Errorf("%s imports %s, which is not below %s", s.path, i, unit)
			}
		}
	}
}

// The plan of docs/design.md is the one that the imports are held to.
func TestTheDesignShowsTheUnits(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "design.md"))
	if err != nil {
		t.Fatal(err)
	}
	var want, have []string
	for _, u := range units {
		want = append(want, strconv.Itoa(u.level)+" "+u.dir)
	}
	for _, row := range regexp.MustCompile(`(?m)^\| ([0-9]+) \| (.+) \|$`).FindAllStringSubmatch(string(text), -1) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[2], -1) {
			have = append(have, row[1]+" "+m[1])
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("docs/design.md shows\n%s\nthe imports are held to\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

// Backends and policies are drivers: they see the interface they implement and nothing else of the engine.
func TestDriversSeeOnlyTheirInterface(t *testing.T) {
	for unit, allowed := range map[string]string{"backends": "core/kernel", "policies": "core/experts"} {
		for _, s := range sources(t, unit) {
			for _, i := range s.imports() {
				if i != allowed && i != unit && !strings.HasPrefix(i, unit+"/") {
					t.Errorf("%s imports %s; %s may import %s only", s.path, i, unit, allowed)
				}
			}
		}
	}
}

func TestNoPackageIsCalledUtil(t *testing.T) {
	for _, s := range sources(t, "core", "backends", "policies", "presets", "conformance", "cmd") {
		if name := s.file.Name.Name; slices.Contains([]string{"util", "utils", "common", "helpers", "misc"}, name) {
			t.Errorf("%s: a package called %s says nothing about what is in it", s.path, name)
		}
	}
}

func TestNoCgo(t *testing.T) {
	for _, s := range sources(t, "core", "backends", "policies", "presets", "conformance", "cmd") {
		for _, i := range s.file.Imports {
			if i.Path.Value == `"C"` {
				t.Errorf("%s uses cgo", s.path)
			}
		}
	}
}

// numeric are the folders whose arithmetic the contract of docs/numerics.md covers.
var numeric = []string{"core/kernel", "core/graph", "core/sample", "backends"}

// portable are the names of package math that give the same bits on every processor. Exp, Pow, Tanh and their like are
// assembly on some and Go on others, with different last bits.
var portable = []string{
	"Sqrt", "FMA", "Floor", "Ceil", "Trunc", "RoundToEven", "Ldexp", "Frexp", "Copysign", "Abs", "Inf", "IsInf", "NaN", "IsNaN", "Signbit",
	"Float32bits", "Float32frombits", "Float64bits", "Float64frombits",
}

func TestArithmeticUsesNothingThatProcessorsDisagreeOn(t *testing.T) {
	for _, s := range sources(t, numeric...) {
		local := ""
		for _, i := range s.file.Imports {
			if i.Path.Value == `"math"` {
				local = "math"
				if i.Name != nil {
					local = i.Name.Name
				}
			}
			if i.Path.Value == `"math/cmplx"` {
				t.Errorf("%s imports math/cmplx", s.path)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				if n.Name == "complex64" || n.Name == "complex128" {
					t.Errorf("%s: complex numbers cannot be kept from being fused", s.fset.Position(n.Pos()))
				}
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if !ok || local == "" || x.Name != local || x.Obj != nil {
					break
				}
				constant := strings.HasPrefix(n.Sel.Name, "Max") && n.Sel.Name != "Max" || strings.HasPrefix(n.Sel.Name, "Smallest") || n.Sel.Name == "Pi"
				if !constant && !slices.Contains(portable, n.Sel.Name) {
					t.Errorf("%s: math.%s may differ between processors", s.fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
}

// fused matches a line of the compiler's listing that multiplies and adds with one rounding: position and instruction.
var fused = regexp.MustCompile(`\(([^()]+):(\d+)\)\s+(V?FN?M(?:ADD|SUB)[0-9]*[SPD]+)\b`)

// exact are the functions that add to a product of two float32 in float64, where that product is exact: fusing the two
// changes no bit.
var exact = map[string][]string{
	"core/kernel/exact.go":        {"FMA", "fmaOdd"},
	"backends/generic/generic.go": {"accumulate"},
}

// notNumeric are packages inside the numeric folders that compute nothing of the model.
var notNumeric = []string{"core/kernel/bench"}

// The compiler may turn x*y+z into one instruction, with another rounding, on arm64 and on amd64 with GOAMD64=v3. The
// engine writes float32(x*y) wherever that could happen; here is the proof, in the machine code of every numeric package.
func TestCompilerFusesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles for two processors")
	}
	type lines struct {
		file     string
		from, to int
	}
	var allowed []lines
	for _, s := range sources(t, numeric...) {
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !slices.Contains(exact[s.path], f.Name.Name) {
				continue
			}
			allowed = append(allowed, lines{s.path, s.fset.Position(f.Pos()).Line, s.fset.Position(f.End()).Line})
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if b, ok := n.(*ast.BinaryExpr); ok && b.Op == token.MUL && !(widened(b.X) && widened(b.Y)) {
					t.Errorf("%s: %s is trusted to multiply only what it widens to float64", s.fset.Position(b.Pos()), f.Name.Name)
				}
				return true
			})
		}
	}
	if len(allowed) != 3 {
		t.Fatalf("of the functions %v there are %d", exact, len(allowed))
	}
	for _, processor := range []string{"GOARCH=arm64", "GOARCH=amd64 GOAMD64=v3"} {
		t.Run(processor, func(t *testing.T) {
			args := []string{"build", "-gcflags=-S"}
			for _, dir := range numeric {
				args = append(args, "./"+dir+"/...")
			}
			cmd := exec.Command("go", args...)
			cmd.Dir = root
			cmd.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0")
			cmd.Env = append(cmd.Env, strings.Fields(processor)...)
			listing, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%.2000s", err, listing)
			}
			harmless, functions := 0, 0
			scan := bufio.NewScanner(bytes.NewReader(listing))
			scan.Buffer(nil, 1<<20)
			for scan.Scan() {
				if strings.Contains(scan.Text(), " STEXT ") {
					functions++
				}
				m := fused.FindStringSubmatch(scan.Text())
				if m == nil {
					continue
				}
				line, _ := strconv.Atoi(m[2])
				file := filepath.ToSlash(m[1])
				if slices.ContainsFunc(notNumeric, func(dir string) bool { return strings.Contains(file, "/"+dir+"/") }) {
					continue
				}
				double := strings.HasSuffix(m[3], "D") // the last letter is the precision: FMADDD, VFMADD231SD
				if double && slices.ContainsFunc(allowed, func(l lines) bool {
					return strings.HasSuffix(file, "/"+l.file) && l.from <= line && line <= l.to
				}) {
					harmless++
					continue
				}
				t.Errorf("%s:%s: the compiler made a %s of it: write float32(x*y) for the product", m[1], m[2], m[3])
			}
			if err := scan.Err(); err != nil {
				t.Fatal(err)
			}
			// The listing must be one: kernel.FMA itself is fused on these processors.
			if harmless == 0 || functions < 100 {
				t.Errorf("%d functions and %d fused sums in all: this test does not see the machine code", functions, harmless)
			}
			if t.Failed() {
				return
			}
			t.Logf("%d functions: nothing fused but %d sums that are exact in float64", functions, harmless)
		})
	}
}

// widened reports whether x is written float64(...).
func widened(x ast.Expr) bool {
	c, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := c.Fun.(*ast.Ident)
	return ok && f.Name == "float64"
}

// Comments send readers to sections of the documents; those must be there.
func TestSectionsThatCommentsNameExist(t *testing.T) {
	reference := regexp.MustCompile(`(docs/[a-z]+\.md)(?:,\s+(?://\s*)?"([^"]+)")?`)
	heading := regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	checked := 0
	for _, s := range sources(t, "core", "backends", "policies", "presets", "conformance", "cmd") {
		for _, group := range s.file.Comments {
			for _, m := range reference.FindAllStringSubmatch(group.Text(), -1) {
				checked++
				text, err := os.ReadFile(filepath.Join(root, m[1]))
				if err != nil {
					t.Errorf("%s names %s: %v", s.path, m[1], err)
					continue
				}
				if m[2] == "" {
					continue
				}
				var sections []string
				for _, h := range heading.FindAllStringSubmatch(string(text), -1) {
					sections = append(sections, h[1])
				}
				if !slices.Contains(sections, m[2]) {
					t.Errorf("%s names %s, %q: it has %q", s.path, m[1], m[2], sections)
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no comment names a document: this test does not see them")
	}
}

// A doc comment begins with the name it documents, after an article at most, as Go's convention says: a comment that
// names something else was left behind by a change. In a group of constants, variables or types the group's comment
// may speak for all.
func TestDocCommentsBeginWithTheNameTheyDocument(t *testing.T) {
	checked := 0
	for _, s := range sources(t, "core", "backends", "policies", "presets", "conformance", "cmd") {
		check := func(name string, comment *ast.CommentGroup) {
			if comment == nil || strings.TrimSpace(comment.Text()) == "" {
				return
			}
			checked++
			words := strings.Fields(comment.Text())
			if len(words) > 1 && slices.Contains([]string{"A", "An", "The"}, words[0]) {
				words = words[1:]
			}
			if first := strings.TrimRight(words[0], ",:"); first != name && first != name+"'s" {
				t.Errorf("%s: the doc comment of %s begins with %q", s.fset.Position(comment.Pos()), name, words[0])
			}
		}
		exported := func(name string, pos token.Pos, docs ...*ast.CommentGroup) {
			if !ast.IsExported(name) {
				return
			}
			for _, d := range docs {
				if d != nil {
					return
				}
			}
			t.Errorf("%s: %s is exported and has no doc comment", s.fset.Position(pos), name)
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				check(d.Name.Name, d.Doc)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						exported(spec.Name.Name, spec.Pos(), d.Doc, spec.Doc, spec.Comment)
						check(spec.Name.Name, spec.Doc)
						if !d.Lparen.IsValid() {
							check(spec.Name.Name, d.Doc)
						}
					case *ast.ValueSpec:
						exported(spec.Names[0].Name, spec.Pos(), d.Doc, spec.Doc, spec.Comment)
						if len(spec.Names) == 1 {
							check(spec.Names[0].Name, spec.Doc)
							if !d.Lparen.IsValid() {
								check(spec.Names[0].Name, d.Doc)
							}
						}
					}
				}
			}
		}
	}
	if checked < 1000 {
		t.Errorf("%d doc comments: this test does not see them", checked)
	}
}

// Every package that others may import shows what it is for in an example whose output is checked.
func TestEveryPublicPackageHasAnExample(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t, "core", "backends", "policies", "presets") {
		if seen[s.dir] || slices.Contains(strings.Split(s.dir, "/"), "internal") {
			continue
		}
		seen[s.dir] = true
		tests, err := filepath.Glob(filepath.Join(root, s.dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		checked := false
		for _, name := range tests {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			checked = checked || slices.ContainsFunc(doc.Examples(f), func(e *doc.Example) bool { return e.Output != "" })
		}
		if !checked {
			t.Errorf("%s has no example with an output", s.dir)
		}
	}
}

// Links between the documents, and from them to files, must lead somewhere.
func TestLinksInDocumentsLead(t *testing.T) {
	documents, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} {
		documents = append(documents, filepath.Join(root, name))
	}
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	for _, d := range documents {
		text, err := os.ReadFile(d)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(d), target)); err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(d), m[1], err)
			}
		}
	}
}

// What k3 takes from others is listed with a reason, and what is listed is taken.
func TestEveryDirectRequirementHasARow(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	var required, listed []string
	for _, m := range regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+/\S+) v\S+$`).FindAllStringSubmatch(string(mod), -1) {
		required = append(required, m[1]) // an indirect one has a comment at the end of its line
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(required)
	slices.Sort(listed)
	if len(required) < 5 || !slices.Equal(required, listed) {
		t.Errorf("go.mod requires\n%s\ndocs/dependencies.md has rows for\n%s", strings.Join(required, "\n"), strings.Join(listed, "\n"))
	}
}

// README's table has every command, and no command that does not exist.
func TestReadmeHasTheCommandsOfTheProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	cmd := exec.Command("go", "run", "./cmd/k3", "--help")
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	help, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%.2000s", err, stderr.String())
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := func(pattern string, text []byte) (all []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			all = append(all, string(m[1]))
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	_, commands, _ := bytes.Cut(help, []byte("Available Commands:\n"))
	commands, _, _ = bytes.Cut(commands, []byte("\n\n"))
	exist := names(`(?m)^  ([a-z]+) `, commands)
	exist = slices.DeleteFunc(exist, func(name string) bool { return name == "help" })
	var listed []string
	for line := range strings.Lines(string(readme)) {
		if row, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|"); strings.HasPrefix(line, "| `k3 ") {
			listed = append(listed, names("`k3 ([a-z]+)`", []byte(row))...)
		}
	}
	slices.Sort(listed)
	if len(exist) < 5 || !slices.Equal(exist, listed) {
		t.Errorf("the program has the commands %v, README lists %v", exist, listed)
	}
}

// The top level is small on purpose.
func TestTopLevelHoldsNothingElse(t *testing.T) {
	allowed := []string{
		"core", "backends", "policies", "presets", "conformance", "cmd", "docs", "go.mod", "go.sum", "Makefile",
		"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md",
	}
	out, err := exec.Command("git", "-C", root, "ls-files").Output()
	if err != nil {
		t.Skip("not a git checkout")
	}
	seen := map[string]bool{}
	for name := range strings.FieldsSeq(string(out)) {
		top, _, _ := strings.Cut(name, "/")
		if seen[top] || strings.HasPrefix(top, ".") {
			continue
		}
		seen[top] = true
		if !slices.Contains(allowed, top) {
			t.Errorf("%s does not belong to the top level", top)
		}
	}
}
