// Mutate asks the tests whether they would notice a mistake. It makes one small mistake at a time in the code, such as
// a < for a <=, a missing call or a number off by one, and runs the tests of the package and of the packages that import
// it. Tests that fail have killed the mutant; one that survives is a rule that no test holds. Nothing is written into
// the tree: the go command is given the changed file as an overlay.
//
//	go run ./conformance/mutate -n 50 -seed 7 ./core/disk ./core/tape
//
// Mutants are drawn at random from all that there are in the packages; one that does not build does not count.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	var o options
	flag.IntVar(&o.n, "n", 30, "mutants to try")
	flag.Uint64Var(&o.seed, "seed", 1, "chooses the mutants; the same seed and code give the same ones")
	flag.StringVar(&o.at, "at", "", "try every mutant at these `places` instead: file:line or file:line:column, with commas between them")
	flag.DurationVar(&o.slowest, "slowest", 30*time.Second, "tests of importing packages that take longer are left out")
	flag.BoolVar(&o.own, "own", false, "ask the tests of the package itself only, not those of packages that import it")
	flag.IntVar(&o.memory, "memory", 8, "address space of a test in GiB, where the system can limit it; 0 is no limit")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: mutate [flags] [packages]")
		flag.PrintDefaults()
	}
	flag.Parse()
	o.packages = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if _, err := run(ctx, ".", o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

type options struct {
	packages []string
	n        int
	seed     uint64
	at       string
	slowest  time.Duration
	own      bool
	memory   int
}

// figures are what a run comes to. Killed and survived are the mutants that count.
type figures struct{ killed, survived, unbuilt int }

// unit is a package of the module, as go list has it, and what its tests are like without a mutant.
type unit struct {
	Dir, ImportPath, Name              string
	GoFiles                            []string
	Imports, TestImports, XTestImports []string
	TestGoFiles, XTestGoFiles          []string

	took   time.Duration
	blocks map[string][]block // by file, as import path/name
}

// block is a piece of code between two positions that runs as a whole, and whether it ran.
type block struct {
	fromLine, fromColumn, toLine, toColumn int
	ran                                    bool
}

func (u *unit) tested() bool { return len(u.TestGoFiles)+len(u.XTestGoFiles) > 0 }

func (u *unit) imports(path string) bool {
	return slices.Contains(u.Imports, path) || slices.Contains(u.TestImports, path) || slices.Contains(u.XTestImports, path)
}

// runner holds what stays the same from mutant to mutant.
type runner struct {
	dir, scratch string // of the module; for files of the runner
	o            options
}

// run tries the mutants that the options ask for in the module in dir and writes a line for each.
func run(ctx context.Context, dir string, o options, out io.Writer) (figures, error) {
	var f figures
	dir, err := filepath.Abs(dir)
	if err != nil {
		return f, err
	}
	scratch, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(scratch)
	r := &runner{dir, scratch, o}

	targets, err := r.list(ctx, o.packages...)
	if err != nil {
		return f, err
	}
	all, err := r.list(ctx, "./...")
	if err != nil {
		return f, err
	}
	chosen, sources, err := r.choose(targets)
	if err != nil {
		return f, err
	}
	if err := r.baseline(ctx, targets, all, out); err != nil {
		return f, err
	}
	begin := time.Now()
	for _, m := range chosen {
		if o.at == "" && f.killed+f.survived == o.n {
			break
		}
		target := targets[slices.IndexFunc(targets, func(u *unit) bool { return u.Dir == filepath.Dir(m.file) })]
		verdict, killer, err := r.try(ctx, m, sources[m.file], target, all)
		if err != nil {
			if ctx.Err() == nil {
				return f, err
			}
			break
		}
		switch verdict {
		case unbuilt:
			f.unbuilt++
			continue
		case killed:
			f.killed++
		default:
			f.survived++
		}
		fmt.Fprintf(out, "%-8s %s%s\n", verdict, m.describe(dir, sources[m.file]), killer)
	}
	if tried := f.killed + f.survived; tried > 0 {
		fmt.Fprintf(out, "%d mutants: %d killed (%.0f%%), %d survived; %d more did not build; seed %d, %s\n", tried, f.killed,
			100*float64(f.killed)/float64(tried), f.survived, f.unbuilt, o.seed, time.Since(begin).Round(time.Second))
	}
	return f, ctx.Err()
}

// list returns the packages that the patterns name.
func (r *runner) list(ctx context.Context, patterns ...string) ([]*unit, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json", "--"}, patterns...)...)
	cmd.Dir = r.dir
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list %s: %w\n%s", strings.Join(patterns, " "), err, &complaint)
	}
	var all []*unit
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		u := new(unit)
		switch err := decoder.Decode(u); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, u)
	}
}

// choose returns the mutants in the order in which they are tried, and the text of the files they are in.
func (r *runner) choose(targets []*unit) ([]mutant, map[string][]byte, error) {
	var all []mutant
	sources := map[string][]byte{}
	for _, u := range targets {
		for _, name := range u.GoFiles {
			path := filepath.Join(u.Dir, name)
			ms, source, err := mutants(path)
			if err != nil {
				return nil, nil, err
			}
			all, sources[path] = append(all, ms...), source
		}
	}
	if r.o.at != "" {
		all = slices.DeleteFunc(all, func(m mutant) bool {
			relative, err := filepath.Rel(r.dir, m.file)
			place := fmt.Sprintf("%s:%d:%d:", filepath.ToSlash(relative), m.line, m.column)
			return err != nil || !slices.ContainsFunc(strings.Split(r.o.at, ","), func(at string) bool {
				return strings.HasPrefix(place, at+":")
			})
		})
		if len(all) == 0 {
			return nil, nil, fmt.Errorf("no mutant at %s in these packages", r.o.at)
		}
		return all, sources, nil
	}
	rng := rand.New(rand.NewPCG(r.o.seed, 0))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, sources, nil
}

// baseline runs the tests that will be asked about mutants once without any, to see that they pass, how long they take
// and which code they reach.
func (r *runner) baseline(ctx context.Context, targets, all []*unit, out io.Writer) error {
	var paths []string
	for _, u := range targets {
		paths = append(paths, u.ImportPath)
	}
	for _, u := range all {
		own := slices.Contains(paths, u.ImportPath)
		if !u.tested() || !own && (r.o.own || !slices.ContainsFunc(paths, u.imports)) {
			continue
		}
		profile := filepath.Join(r.scratch, "profile")
		built, err := r.build(ctx, u, "-cover", "-coverpkg="+strings.Join(paths, ","))
		if err != nil {
			return err
		}
		if !built {
			return fmt.Errorf("the tests of %s do not build", u.ImportPath)
		}
		start := time.Now()
		passed, output, err := r.test(ctx, u, 10*time.Minute, "-test.coverprofile="+profile)
		if err != nil {
			return err
		}
		if !passed {
			return fmt.Errorf("the tests of %s fail without a mutant:\n%s", u.ImportPath, output)
		}
		u.took = time.Since(start)
		if u.blocks, err = readProfile(profile); err != nil {
			return err
		}
		fmt.Fprintf(out, "baseline %s passes in %s\n", u.ImportPath, u.took.Round(100*time.Millisecond))
	}
	return nil
}

// readProfile reads a coverage profile.
func readProfile(path string) (map[string][]block, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	blocks := map[string][]block{}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
		file, rest, _ := strings.Cut(line, ":")
		var b block
		var statements, count int
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &b.fromLine, &b.fromColumn, &b.toLine, &b.toColumn, &statements,
			&count); err != nil {
			return nil, fmt.Errorf("%s: line %q: %w", path, line, err)
		}
		b.ran = count > 0
		blocks[file] = append(blocks[file], b)
	}
	return blocks, nil
}

// reaches reports whether the tests of u run the code of a mutant in a package. The processes they start are not seen:
// the tests of a program count as running all of it. What is in no block, such as a constant, runs everywhere.
func (u *unit) reaches(m mutant, target *unit) bool {
	found := false
	for _, b := range u.blocks[target.ImportPath+"/"+filepath.Base(m.file)] {
		after := m.line > b.fromLine || m.line == b.fromLine && m.column >= b.fromColumn
		before := m.line < b.toLine || m.line == b.toLine && m.column <= b.toColumn
		if after && before {
			if b.ran {
				return true
			}
			found = true
		}
	}
	return !found || u.Name == "main"
}

const (
	killed   = "killed"
	survived = "survived"
	unbuilt  = "unbuilt"
)

// try gives the verdict on one mutant, and for a killed one by which test.
func (r *runner) try(ctx context.Context, m mutant, source []byte, target *unit, all []*unit) (string, string, error) {
	changed := filepath.Join(r.scratch, "mutant.go")
	if err := os.WriteFile(changed, m.apply(source), 0o600); err != nil {
		return "", "", err
	}
	overlay := filepath.Join(r.scratch, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{m.file: changed}})
	if err != nil {
		return "", "", err
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return "", "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", os.DevNull, target.ImportPath)
	cmd.Dir = r.dir
	if err := cmd.Run(); err != nil {
		return unbuilt, "", ctx.Err()
	}
	var ask []*unit
	for _, u := range all {
		own := u.ImportPath == target.ImportPath
		if u.tested() && u.reaches(m, target) && (own || !r.o.own && u.imports(target.ImportPath) && u.took <= r.o.slowest) {
			ask = append(ask, u)
		}
	}
	slices.SortFunc(ask, func(a, b *unit) int {
		if own := target.ImportPath; a.ImportPath == own || b.ImportPath == own {
			return map[bool]int{true: -1, false: 1}[a.ImportPath == own]
		}
		return int(a.took - b.took)
	})
	if len(ask) == 0 {
		return survived, "  (no test runs this)", nil
	}
	for _, u := range ask {
		built, err := r.build(ctx, u, "-overlay", overlay)
		if err != nil {
			return "", "", err
		}
		if !built {
			return unbuilt, "", nil
		}
		passed, output, err := r.test(ctx, u, 5*u.took+30*time.Second)
		if err != nil {
			return "", "", err
		}
		if !passed {
			return killed, "  by " + u.ImportPath + ": " + failure(output), nil
		}
	}
	return survived, "", nil
}

// build makes the test program of a package and reports whether it builds.
func (r *runner) build(ctx context.Context, u *unit, flags ...string) (bool, error) {
	args := append([]string{"test", "-c", "-vet=off", "-o", filepath.Join(r.scratch, "tests.exe")}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, u.ImportPath)...)
	cmd.Dir = r.dir
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || ctx.Err() != nil) {
		return false, errors.Join(err, ctx.Err())
	}
	return err == nil, nil
}

// test runs the test program in the folder of its package and reports whether it passed in time, and what it said.
func (r *runner) test(ctx context.Context, u *unit, limit time.Duration, flags ...string) (bool, []byte, error) {
	temporary := filepath.Join(r.scratch, "tmp")
	if err := os.Mkdir(temporary, 0o700); err != nil {
		return false, nil, err
	}
	defer os.RemoveAll(temporary)
	bounded, cancel := context.WithTimeout(ctx, limit+10*time.Second)
	defer cancel()
	args := append([]string{"-test.short", "-test.failfast", "-test.timeout=" + limit.String()}, flags...)
	cmd := limited(bounded, r.o.memory, filepath.Join(r.scratch, "tests.exe"), args...)
	cmd.Dir, cmd.WaitDelay = u.Dir, 5*time.Second
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary, "TMP="+temporary, "GOCOVERDIR="+temporary)
	output, err := cmd.CombinedOutput()
	end(cmd)
	return err == nil, output, ctx.Err()
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^panic: (test timed out)|^(panic|fatal error): (.{0,60})`)

// failure names what failed: a test, or what ended the program.
func failure(output []byte) string {
	found := failed.FindSubmatch(output)
	if found == nil {
		return "exit"
	}
	return string(bytes.Join(bytes.Fields(bytes.Join(found[1:], []byte(" "))), []byte(" ")))
}
