package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/pack"
	"github.com/k3infer/k3/core/sample"
	"github.com/k3infer/k3/core/tokenizer"
	"github.com/k3infer/k3/presets"
)

// k3 runs the program in this process, with a stdin, and returns what it wrote to stdout.
func k3(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	root := rootCommand()
	var out bytes.Buffer
	root.SetArgs(args)
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(io.Discard)
	err := root.Execute()
	return out.String(), err
}

func TestDumpedLogitsAreThoseTheTokensWereChosenFrom(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "logits.safetensors")
	out, err := k3(t, "", "run", "-q", "--ids", "10,20,30", "--max-tokens", "4", "--ignore-eos", "--print-ids",
		"--dump-logits", path)
	if err != nil {
		t.Fatal(err)
	}
	generated, err := parseIDs(out)
	if err != nil || len(generated) != 4 {
		t.Fatalf("%q: %v", out, err)
	}
	index, err := checkpoint.ReadFile(disk.Dir(dir), "logits.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	logits, _ := index.Lookup("logits")
	ids, _ := index.Lookup("ids")
	if !slices.Equal(logits.Shape, []int{6, 1536}) || logits.DType != checkpoint.F32 ||
		!slices.Equal(ids.Shape, []int{7}) || ids.DType != checkpoint.I32 {
		t.Fatalf("logits %v %v, ids %v %v", logits.DType, logits.Shape, ids.DType, ids.Shape)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for i := range 7 {
		all = append(all, int(binary.LittleEndian.Uint32(data[ids.Offset+int64(4*i):])))
	}
	if want := append([]int{10, 20, 30}, generated...); !slices.Equal(all, want) {
		t.Errorf("ids %v, want %v", all, want)
	}
	sampler, err := sample.New(sample.Params{})
	if err != nil {
		t.Fatal(err)
	}
	row := make([]float32, 1536)
	for i := 2; i < 6; i++ {
		for j := range row {
			row[j] = math.Float32frombits(binary.LittleEndian.Uint32(data[logits.Offset+int64(4*(i*1536+j)):]))
		}
		if id, err := sampler.Next(row, nil); err != nil || id != all[i+1] {
			t.Errorf("row %d gives id %d, %v; the run chose %d", i, id, err, all[i+1])
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestAFailedRunLeavesNoFiles(t *testing.T) {
	dir := t.TempDir()
	_, err := k3(t, "", "run", "-q", "--ids", "1,9999", "--report", filepath.Join(dir, "r.json"),
		"--dump-logits", filepath.Join(dir, "l"))
	if exitCode(err) != ui.ExitUsage {
		t.Errorf("error %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || slices.ContainsFunc(left, func(e fs.DirEntry) bool { return e.Name() != "r.json" }) {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// fixtures returns the path of public test data, or skips.
func fixture(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join("../../../shared/fixtures", name)
	if _, err := os.Stat(path); err != nil {
		t.Skip("the public test data is not here")
	}
	return path
}

// eachGolden gives the lines of a JSONL file.
func eachGolden[T any](t *testing.T, path string, use func(v T)) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 1 {
			var v T
			if err := json.Unmarshal(line, &v); err != nil {
				t.Fatal(err)
			}
			use(v)
		}
		if err != nil {
			return
		}
	}
}

func TestTokenizeAnswersLinesLikeTheReference(t *testing.T) {
	model := fixture(t, "tokenizer")
	for _, c := range []struct {
		file string
		args []string
	}{
		{"kimi-tokenizer-golden.jsonl", nil}, {"splits.jsonl", []string{"--pieces"}},
	} {
		type line struct {
			IDs    []int    `json:"ids"`
			Pieces []string `json:"pieces"`
		}
		path := filepath.Join(model, c.file)
		out, err := k3(t, "", append([]string{"tokenize", "--model", model, "--jsonl", "--file", path}, c.args...)...)
		if err != nil {
			t.Fatal(err)
		}
		var want, got []line
		eachGolden(t, path, func(l line) { want = append(want, l) })
		for l := range strings.Lines(out) {
			var g line
			if err := json.Unmarshal([]byte(l), &g); err != nil {
				t.Fatal(err)
			}
			got = append(got, g)
		}
		if len(want) < 100 || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %d answers to %d lines, or they differ", c.file, len(got), len(want))
		}
	}
}

func TestTokenizeRendersChatsLikeTheReference(t *testing.T) {
	source := fixture(t, "tokenizer/tiktoken.model")
	model := t.TempDir()
	data, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	config := `{"added_tokens_decoder":{`
	for i, token := range []string{"<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>"} {
		config += fmt.Sprintf(`"%d":{"content":%q},`, 163586+i, token)
	}
	for i, token := range []string{"<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>"} {
		config += fmt.Sprintf(`"%d":{"content":%q},`, 163602+i, token)
	}
	config += `"163585":{"content":"[EOS]"}},"eos_token":"[EOS]"}`
	for name, data := range map[string][]byte{"tiktoken.model": data, "tokenizer_config.json": []byte(config)} {
		if err := os.WriteFile(filepath.Join(model, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	type answer struct {
		IDs      []int `json:"ids"`
		Segments []struct {
			Text    string `json:"text"`
			Special bool   `json:"special"`
		} `json:"segments"`
	}
	type golden struct {
		answer
		Request json.RawMessage `json:"request"`
	}
	var in strings.Builder
	var want []answer
	eachGolden(t, fixture(t, "chat/chat-a.jsonl"), func(g golden) {
		fmt.Fprintf(&in, "%s\n", g.Request)
		want = append(want, g.answer)
	})
	out, err := k3(t, in.String(), "tokenize", "--model", model, "--jsonl", "--chat")
	if err != nil {
		t.Fatal(err)
	}
	var got []answer
	for l := range strings.Lines(out) {
		var g answer
		if err := json.Unmarshal([]byte(l), &g); err != nil {
			t.Fatal(err)
		}
		got = append(got, g)
	}
	if len(want) < 10 || !reflect.DeepEqual(got, want) {
		t.Errorf("%d answers to %d requests, or they differ", len(got), len(want))
	}
}

func TestEveryErrorHasItsExitCode(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("while testing: %w", err) }
	for _, c := range []struct {
		err  error
		code int
	}{
		{nil, 0}, {errors.New("x"), 1}, {fs.ErrNotExist, 1}, {core.ErrNumbers, 1}, {sample.ErrLogits, 1}, {core.ErrBroken, 1},
		{presets.ErrConfig, 2}, {sample.ErrParams, 2}, {kernel.ErrBackend, 2}, {core.ErrContext, 2}, {core.ErrToken, 2},
		{core.ErrPrompt, 2}, {tokenizer.ErrUnknownID, 2}, {tokenizer.ErrInvalidUTF8, 2}, {ui.Usagef("x"), 2},
		{checkpoint.ErrConfig, 3}, {checkpoint.ErrFormat, 3}, {tokenizer.ErrFormat, 3}, {core.ErrSession, 3},
		{ui.Inputf("x: %w", tokenizer.ErrInvalidUTF8), 3},
		// A file that became shorter while it was read is damaged, and so is a frame of a pack that is none.
		{&disk.Error{File: "x", Err: disk.ErrShort}, 3}, {disk.ErrFile, 3}, {pack.Expand(make([]byte, 2), nil), 3},
		// One that cannot be read may be whole.
		{&disk.Error{File: "x", Err: syscall.EIO}, 1}, {ui.Inputf("x: %w", &disk.Error{File: "x", Err: syscall.EIO}), 1},
		{ui.Inputf("x: %w", fs.ErrPermission), 1}, {ui.Inputf("x: %w", fs.ErrNotExist), 3},
		{errors.Join(fs.ErrPermission, checkpoint.ErrFormat), 3},
		{context.Canceled, 130}, {ui.ErrInterrupted, 130},
	} {
		if got := exitCode(c.err); got != c.code {
			t.Errorf("%v: %d, want %d", c.err, got, c.code)
		}
		if c.err != nil && exitCode(wrap(c.err)) != c.code {
			t.Errorf("%v, wrapped: not %d", c.err, c.code)
		}
	}
	if got := ui.OneLine(errors.New("open a\nb\r: no")); got != `open a\nb\r: no` {
		t.Errorf("one line: %q", got)
	}
}

func TestLoneSurrogatesAreFound(t *testing.T) {
	for text, want := range map[string]int{
		`"a"`: -1, `"\ud83d\ude00"`: -1, `"\\ud83d"`: -1, `"\ud83d"`: 1, `"ab\ude00"`: 3, `"\ud83d\ud83d\ude00"`: 1, `"\uD83Dx"`: 1,
		`"\u00e9\ude00"`: 7, `"\`: -1, `"\u12`: -1, `"\ud83d\ud`: 1,
	} {
		if got := loneSurrogate(text); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}

// TestTheFirstInterruptEndsTheTextAndReports starts the program for real.
func TestTheFirstInterruptEndsTheTextAndReports(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot be sent Ctrl-C alone")
	}
	program, err := exec.LookPath("k3")
	if err != nil {
		t.Fatal(err) // testscript.Main puts it there
	}
	report := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.Command(program, "run", "--ids", "1", "--max-tokens", "4000", "--ignore-eos", "--print-ids", "--report", report)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	first := make([]byte, 1)
	if _, err := io.ReadFull(stdout, first); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(stdout)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); exitOf(err) != ui.ExitInterrupted {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	ids, err := parseIDs(string(first) + string(rest))
	if err != nil || len(ids) == 0 || len(ids) >= 4000 {
		t.Errorf("%d ids, %v", len(ids), err)
	}
	if !strings.Contains(stderr.String(), "ended     interrupted after") ||
		!strings.HasSuffix(stderr.String(), "k3: interrupted\n") {
		t.Errorf("stderr: %s", stderr.String())
	}
	data, err := os.ReadFile(report)
	var r struct {
		IDs    []int  `json:"ids"`
		Reason string `json:"stop_reason"`
	}
	if err != nil || json.Unmarshal(data, &r) != nil || !slices.Equal(r.IDs, ids) || r.Reason != "interrupted" {
		t.Errorf("report %s, %v", data, err)
	}
}

func TestTheSecondInterruptCancelsTheWork(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot be sent Ctrl-C alone")
	}
	ctx, first, stop := interrupts(t.Context())
	defer stop()
	interrupt := func() {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Signal(os.Interrupt)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	interrupt()
	select {
	case <-first:
	case <-time.After(10 * time.Second):
		t.Fatal("the first interrupt went unnoticed")
	}
	if ctx.Err() != nil {
		t.Error("the first interrupt cancelled the work")
	}
	interrupt()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the second interrupt went unnoticed")
	}
}

func exitOf(err error) int {
	exit := &exec.ExitError{}
	if !errors.As(err, &exit) {
		return -1
	}
	return exit.ExitCode()
}
