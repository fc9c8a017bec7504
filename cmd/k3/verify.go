package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/hub"
	"github.com/k3infer/k3/core/verify"
	"github.com/k3infer/k3/presets"
	"github.com/k3infer/k3/presets/demo"
)

func verifyCommand() *cobra.Command {
	var deep, restart, asJSON, quiet bool
	var readers int
	cmd := &cobra.Command{
		Use:   "verify [flags] DIR",
		Short: "Prove that a model is whole, or say which files to fetch again",
		Long: "Check a model's directory (demo is the built-in one) and list everything that is wrong with it: the header of every shard, every\n" +
			"tensor against config.json, the tokenizer, sizes and, where the files were fetched by k3 download, checksums. That reads little;\n" +
			"--deep reads every byte, around the page cache: the checksums of all shards, and numbers that no weight has (NaN, infinity, a\n" +
			"scale byte of 255, zeros where weights should be). Interrupted, it goes on where it stopped.\n\n" +
			"It writes in DIR/.k3 and nowhere else: --deep keeps how far it is until it is done, and where k3 download has fetched the\n" +
			"files, which of them are right is noted in its manifest.json. A directory that cannot be written to is checked all the same;\n" +
			"an interrupted --deep then begins again.\n\n" +
			"The exit code is 0 if all is well, also of a part that download --layers fetched, 3 if not, and 1 if nothing is known\n" +
			"to be wrong but files cannot be read.",
		Args: oneArgument("a model's directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if readers < 1 || readers > 64 {
				return ui.Usagef("--readers: %d: must be from 1 to 64", readers)
			}
			return verifyModel(cmd, args[0], verify.Options{Deep: deep, Restart: restart, Readers: readers}, asJSON, quiet)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&deep, "deep", false, "read every byte")
	flags.BoolVar(&restart, "restart", false, "read all again, also what an interrupted --deep has read")
	flags.IntVar(&readers, "readers", runtime.NumCPU(), "read `N` files at a time; 1 may be faster on a disk that turns")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	flags.BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return cmd
}

func verifyModel(cmd *cobra.Command, dir string, o verify.Options, asJSON, quiet bool) error {
	files, place := demo.Files(), ""
	if dir != presets.DemoModel {
		// What is missing of a model is listed with all that is wrong with it, and so is what a download left, of whatever.
		_, unknown := hub.ReadManifest(dir)
		err := recognise(dir, configFile)
		other := errors.Is(err, checkpoint.ErrOther) && unknown != nil
		if other || errors.Is(err, checkpoint.ErrNothing) || errors.Is(err, fs.ErrPermission) {
			return err
		}
		files, place = disk.Dir(dir), dir
	}
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	line := ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), quiet)
	defer line.Clear()
	line.Show(time.Now(), "checking "+dir)
	var p ui.Pace
	o.Progress = func(at verify.Progress) {
		line.Show(time.Now(), fmt.Sprintf("read %s of %s (%s)%s, %s", ui.Size(at.Done), ui.Size(at.Total), ui.Percent(at.Done, at.Total),
			p.Update(time.Now(), at.Done, at.Total), at.Name))
	}
	start := time.Now()
	r, err := verify.Check(ctx, files, place, o)
	line.Clear()
	switch {
	case errors.Is(err, context.Canceled) && o.Deep:
		if place == "" || !verify.Begun(place) {
			return ui.ErrInterrupted // nothing could be kept
		}
		return ui.WithCode(ui.ExitInterrupted, ui.WithHint(errors.New(ui.Interrupted), "the same command goes on where it stopped"))
	case err != nil:
		return err
	}
	command := fetchCommand(r, dir)
	if asJSON {
		err = ui.WriteJSON(cmd.OutOrStdout(), struct {
			*verify.Report
			Command string  `json:"command,omitempty"`
			Seconds float64 `json:"seconds"`
		}{r, command, time.Since(start).Seconds()})
	} else {
		err = writeVerified(cmd.OutOrStdout(), r, command, time.Since(start))
	}
	if err != nil || r.OK {
		return err
	}
	unread := 0
	for _, p := range r.Problems {
		if p.Unreadable {
			unread++
		}
	}
	if unread == len(r.Problems) {
		return fmt.Errorf("%s: %s cannot be read", dir, ui.Plural(unread, "file", "files"))
	}
	return ui.Inputf("%s: %s", dir, ui.Plural(len(r.Problems), "problem", "problems"))
}

// fetchCommand is the command that fetches what is missing or damaged, or else the layers that were not asked for; ""
// if nothing is.
func fetchCommand(r *verify.Report, dir string) string {
	if len(r.Missing)+len(r.Damaged)+len(r.LeftOut) == 0 || dir == presets.DemoModel {
		return ""
	}
	args := downloadArguments(dir, r.Repo, r.Endpoint, released(r))
	// What is merely missing is what the command fetches anyway, if that is many.
	const few = 4
	if len(r.Damaged) > 0 || len(r.Missing) > 0 && (len(r.Missing) <= few || len(r.LeftOut) > 0) {
		for _, list := range [][]string{r.Missing, r.Damaged} {
			for _, name := range list {
				args = append(args, "--include", ui.QuoteArgument(name))
			}
		}
	}
	if len(r.Damaged) > 0 {
		args = append(args, "--force")
	}
	return strings.Join(args, " ")
}

// downloadArguments begin the command that goes on with a directory: from where its manifest says, and to where its
// files are.
func downloadArguments(dir, repo, endpoint string, isReleased bool) []string {
	args := []string{"k3", "download", ui.QuotePath(dir)}
	if repo == "" && !isReleased {
		args = append(args, "--repo", "OWNER/NAME")
	}
	if endpoint != "" && endpoint != hub.DefaultEndpoint {
		args = append(args, "--endpoint", ui.QuoteArgument(endpoint))
	}
	if repo != "" {
		return args // the manifest knows where the files are
	}
	var dirs []string
	entries, _ := os.ReadDir(dir) // if it cannot be read, that has been said
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || !isShard(e.Name()) || !filepath.IsAbs(to) || filepath.Base(to) != e.Name() {
			continue // not made by download --dir
		}
		if d := filepath.Dir(to); !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	for _, d := range dirs {
		args = append(args, "--dir", ui.QuotePath(d))
	}
	return args
}

// released tells by the names of the shards whether this can be the released model.
func released(r *verify.Report) bool {
	return slices.ContainsFunc(r.Files, func(f verify.File) bool { return releasedShard(f.Name) })
}

func isShard(name string) bool { return strings.HasSuffix(name, ".safetensors") }

// writeVerified says what was found.
func writeVerified(w io.Writer, r *verify.Report, command string, took time.Duration) error {
	const most = 20 // problems of one file; --json has all
	const few = 4   // shards that are missing; their names alone tell little
	missing := 0
	absent := map[string]bool{}
	for _, name := range r.Missing {
		if absent[name] = isShard(name); absent[name] {
			missing++
		}
	}
	if missing > few {
		here := ""
		if r.Layers >= 0 && r.OfLayers > 0 {
			here = fmt.Sprintf(": %d of %d layers are here", r.Layers, r.OfLayers)
		}
		fmt.Fprintf(w, "%s: %d shards are missing%s (--json names them)\n", r.Path, missing, here)
	}
	shown, file := 0, ""
	for i, p := range r.Problems {
		if missing > few && absent[p.File] {
			continue
		}
		if i == 0 || p.File != file {
			shown, file = 0, p.File
		}
		if shown++; shown > most {
			if i+1 == len(r.Problems) || r.Problems[i+1].File != file {
				fmt.Fprintf(w, "%s: and %d more problems; --json lists them\n", file, shown-most)
			}
			continue
		}
		name, published := p.File, ""
		if name == "" {
			name = r.Path
		}
		if p.Published && r.Repo != "" {
			published = " (the file is as published: to fetch it again would not help)"
		}
		fmt.Fprintf(w, "%s: %s%s\n", name, strings.NewReplacer("\n", `\n`, "\r", `\r`).Replace(p.Text), published)
	}
	counts := map[verify.Result]int{}
	shards := 0
	for _, f := range r.Files {
		counts[f.Result]++
		if isShard(f.Name) && f.Result != verify.Absent && f.Result != verify.LeftOut {
			shards++
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	var sums []string
	for _, result := range []verify.Result{verify.Right, verify.Different, verify.Unknown, verify.NotRead,
		verify.Absent, verify.LeftOut} {
		if n := counts[result]; n > 0 {
			text := map[verify.Result]string{
				verify.Right: "with the published checksum", verify.Different: "that are not as published", verify.Unknown: "read, with nothing to compare with",
				verify.NotRead: "not read (--deep does)", verify.Absent: "missing",
				verify.LeftOut: "of layers that were not asked for",
			}[result]
			sums = append(sums, fmt.Sprintf("%d %s", n, text))
		}
	}
	fmt.Fprintf(w, "%s: %s in %s, %s; files: %s; %s\n", r.Path, ui.Plural(r.Tensors, "tensor", "tensors"), ui.Plural(shards, "shard", "shards"), ui.Size(r.Bytes), strings.Join(sums, ", "), ui.Seconds(took.Seconds()))
	if r.Shards > 0 {
		fmt.Fprintf(w, "reads while it runs: %s\n", checkedFiles{Checked: r.Checked, Files: r.Shards}.announce())
	}
	if r.OK {
		fmt.Fprintln(w, "no problems found")
	}
	what := "what is missing or damaged"
	if len(r.Missing)+len(r.Damaged) == 0 {
		what = "the other layers"
	}
	if command != "" {
		_, err := fmt.Fprintf(w, "\nthis fetches %s:\n\n  %s\n", what, command)
		return err
	}
	return nil
}
