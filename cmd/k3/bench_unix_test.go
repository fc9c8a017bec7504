//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
)

// fakeBencher runs, in place of k3, a shell script that notes its budget in the file log and then does as body says; $report
// is where the report belongs, $memory the budget and $run how often the script has run before.
func fakeBencher(t *testing.T, repeats int, body string) (b *bencher, log func() []string) {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	text := `#!/bin/sh
for a; do case $a in --report=*) report=${a#--report=};; --memory=*) memory=${a#--memory=}; memory=${memory%B};; esac; done
touch "` + dir + `/log"
run=$(wc -l < "` + dir + `/log")
echo $memory >> "` + dir + `/log"
` + body + "\n"
	if err := os.WriteFile(program, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	b = &bencher{flags: benchFlags{repeats: repeats}, program: program, limit: noLimit, scratch: dir, line: ui.NewProgress(io.Discard, io.Discard, true)}
	b.result.Kind = "ladder"
	return b, func() []string {
		data, err := os.ReadFile(filepath.Join(dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(data))
	}
}

func settingsOf(memory ...int64) (list []setting) {
	for _, m := range memory {
		list = append(list, setting{Label: fmt.Sprint(m), Memory: m})
	}
	return list
}

// writeReport is the script's part that writes a report, with $ids and $peak.
func writeReport(t *testing.T) string {
	t.Helper()
	r := report{Decode: phase{Tokens: 1, Passes: 1, SecondsPerToken: 1}}
	data, err := json.Marshal(&r)
	if err != nil {
		t.Fatal(err)
	}
	s := strings.Replace(string(data), `"ids":null`, `"ids":['$ids']`, 1)
	if s == string(data) {
		t.Fatalf("no ids in %s", s)
	}
	return `echo '` + strings.TrimSuffix(s, "}") + `,"peak_rss_bytes":'$peak'}' > $report`
}

func TestRoundsGoBackAndForthAndBeginWithTheBest(t *testing.T) {
	b, log := fakeBencher(t, 3, "ids=1 peak=0; "+writeReport(t))
	if err := b.measure(t.Context(), settingsOf(1, 2, 3)); err != nil {
		t.Fatal(err)
	}
	if got, want := log(), []string{"3", "2", "1", "1", "2", "3", "3", "2", "1"}; !slices.Equal(got, want) {
		t.Errorf("measured %v, want %v", got, want)
	}
	for _, r := range b.result.Rungs {
		if r.Status != rungFits || len(r.SecondsPerToken.Values) != 3 {
			t.Errorf("%s: %s, %v", r.Label, r.Status, r.SecondsPerToken.Values)
		}
	}
}

func TestWhatDoesNotFitIsToldFromWhatFails(t *testing.T) {
	b, log := fakeBencher(t, 3, `case $memory in
1) echo 'k3: 5 more bytes needed' >&2; exit 4;;
2) echo 'fatal error: runtime: cannot allocate memory' >&2; echo 'goroutine 1' >&2; exit 2;;
3) kill -9 $$;;
4) echo '{"ids":[' > $report;;
5) exit 0;;
6) echo 'k3: it broke' >&2; echo noise >&2; exit 1;;
7) [ $run -lt 7 ] || exit 1;;
esac
ids=1,2 peak=8; [ $memory = 4 ] || [ $memory = 5 ] || `+writeReport(t))
	b.limit.name, b.limit.about = "rope", "a rope"
	if err := b.measure(t.Context(), settingsOf(1, 2, 3, 4, 5, 6, 7, 8)); err != nil {
		t.Fatal(err)
	}
	for i, x := range []struct{ status, why string }{
		{rungNoFit, "5 more bytes needed"},
		{rungFailed, "exit status 2: fatal error: runtime: cannot allocate memory (perhaps for want of memory; the hard limit is a rope)"},
		{rungFailed, "signal: killed:  (perhaps for want of memory"},
		{rungFailed, "the report: unexpected end of JSON input"},
		{rungFailed, "the report: open "},
		{rungFailed, "exit status 1: it broke|"},
		{rungFailed, "8 were in use"}, // more than promised
		{rungFits, ""},
	} {
		r := b.result.Rungs[i]
		if r.Status != x.status || !strings.Contains(r.Why+"|", x.why) {
			t.Errorf("%s: %s, %s", r.Label, r.Status, r.Why)
		}
	}
	if n := len(log()); n != 8+2 {
		t.Errorf("%d runs: what fails or does not fit is not to be repeated", n)
	}
}

func TestOtherIDsAreNoticed(t *testing.T) {
	b, _ := fakeBencher(t, 3, "ids=1; [ $run != 4 ] || ids=2; peak=0; "+writeReport(t))
	if err := b.measure(t.Context(), settingsOf(10, 20)); err != nil {
		t.Fatal(err)
	}
	if b.result.Different != "20, run 3: 2" {
		t.Errorf("%q", b.result.Different)
	}
	if err := b.result.verdict(); exitCode(err) != ui.ExitFailed {
		t.Errorf("%v", err)
	}
}

func TestResultsAreWrittenAfterEveryRun(t *testing.T) {
	b, _ := fakeBencher(t, 3, "[ $run -lt 1 ] || cp out/ladder.tsv seen$run; ids=1 peak=0; "+writeReport(t))
	t.Chdir(b.scratch)
	b.flags.out = "out"
	if err := b.checkOut("ladder"); err != nil {
		t.Fatal(err)
	}
	if err := b.measure(t.Context(), settingsOf(10)); err != nil {
		t.Fatal(err)
	}
	for run := 1; run < 3; run++ {
		data, err := os.ReadFile(fmt.Sprint("seen", run))
		if err != nil || !strings.Contains(string(data), fmt.Sprintf("\t%d\tfits\t1\n", run)) {
			t.Errorf("before run %d: %q, %v", run+1, data, err)
		}
	}
	earlier, err := readBench("out", "ladder")
	if err != nil || len(earlier.Rungs) != 1 || len(earlier.Rungs[0].Runs) != 3 {
		t.Errorf("read back: %+v, %v", earlier, err)
	}
	if err := b.checkOut("ladder"); exitCode(err) != ui.ExitUsage {
		t.Errorf("the same again: %v", err)
	}
}

// TestAnInterruptedMeasurementShowsWhatItHas starts the program for real.
func TestAnInterruptedMeasurementShowsWhatItHas(t *testing.T) {
	program, err := exec.LookPath("k3")
	if err != nil {
		t.Fatal(err) // testscript.Main puts it there
	}
	dir := t.TempDir()
	t.Setenv("TMPDIR", filepath.Join(dir, "scratch"))
	if err := os.Mkdir(filepath.Join(dir, "scratch"), 0o700); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	cmd := exec.Command(program, "bench", "ladder", "--model", "demo", "--memory", "100MiB,200MiB",
		"--repeats", "1000", "--max-tokens", "2", "--out", out)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 1000 { // until a run is done
		if data, _ := os.ReadFile(filepath.Join(out, "ladder.tsv")); strings.Contains(string(data), "fits") {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != ui.ExitInterrupted || !strings.HasSuffix(stderr.String(), "k3: interrupted\n") {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
	if !strings.Contains(stdout.String(), "200MiB") || !strings.Contains(stdout.String(), "gave the same 2 ids") {
		t.Errorf("stdout %q", stdout.String())
	}
	if left, err := os.ReadDir(filepath.Join(dir, "scratch")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestUlimitIsHard(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("enforced on Linux only")
	}
	run := func(block int64) error {
		args := []string{"if=/dev/zero", "of=/dev/null", "count=1", "bs=" + strconv.FormatInt(block, 10)}
		cmd, release, err := ulimit.command(t.Context(), 64<<20, "/bin/dd", args)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		return cmd.Run()
	}
	if err := run(64 << 20); err != nil {
		t.Errorf("64 MiB in 64 MiB: %v", err)
	}
	if err := run(64<<20 + 2*ulimitSlack); err == nil {
		t.Error("256 MiB in 64 MiB went well")
	}
}
