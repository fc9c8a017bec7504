package main

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/k3infer/k3/core/hub/hubtest"
)

// TestHubScripts runs testdata/hub/*.txtar, each with a hub of its own at $HUB that has the demonstration model in the place of
// the released one. Besides the commands of testscript they know
//
//	code N k3 ARGS...    the exit code is N
//	flip FILE OFFSET     changes a bit of the byte at the offset, from the end if it is negative
//	swap FILE OLD NEW    replaces text in a file
//	wants TOKEN          from now on, the hub answers only to those who have the token
//	stalls true|false    from now on, large files come without an end, or do again
//	await FILE           waits until the file is there
//	changes FILE         from now on, the hub has other bytes in the file than its metadata say
func TestHubScripts(t *testing.T) {
	files := map[string][]byte{"figures/logo.png": []byte("PNG"), "modeling.py": []byte("import torch")}
	const model = "../../presets/demo/checkpoint"
	entries, err := os.ReadDir(model)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if files[e.Name()], err = os.ReadFile(filepath.Join(model, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	type key struct{}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/hub",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(env *testscript.Env) error {
			h := hubtest.New(files)
			env.Defer(h.Close)
			env.Values[key{}] = h
			env.Setenv("HUB", h.URL())
			env.Setenv("HF_ENDPOINT", h.URL())
			env.Setenv("HF_HOME", env.WorkDir)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": func(ts *testscript.TestScript, neg bool, args []string) {
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
			},
			"flip": func(ts *testscript.TestScript, neg bool, args []string) {
				path := ts.MkAbs(args[0])
				data, err := os.ReadFile(path)
				ts.Check(err)
				at, err := strconv.Atoi(args[1])
				ts.Check(err)
				if at < 0 {
					at += len(data)
				}
				data[at] ^= 1
				ts.Check(os.WriteFile(path, data, 0o644))
			},
			"swap": func(ts *testscript.TestScript, neg bool, args []string) {
				text := ts.ReadFile(args[0])
				if !strings.Contains(text, args[1]) {
					ts.Fatalf("%s has no %s", args[0], args[1])
				}
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Replace(text, args[1], args[2], 1)), 0o644))
			},
			"stalls": func(ts *testscript.TestScript, neg bool, args []string) {
				h := ts.Value(key{}).(*hubtest.Hub)
				h.SetFault(nil)
				if args[0] == "true" {
					h.SetFault(func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
						if q.CDN {
							<-r.Context().Done()
						}
						return q.CDN
					})
				}
			},
			"changes": func(ts *testscript.TestScript, neg bool, args []string) {
				other := slices.Clone(files[args[0]])
				other[0] ^= 1
				ts.Value(key{}).(*hubtest.Hub).Set(args[0], other)
			},
			"await": func(ts *testscript.TestScript, neg bool, args []string) {
				for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
					if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
						return
					}
				}
				ts.Fatalf("%s does not come", args[0])
			},
			"wants": func(ts *testscript.TestScript, neg bool, args []string) {
				ts.Value(key{}).(*hubtest.Hub).SetToken(args[0])
			},
		},
	})
}
