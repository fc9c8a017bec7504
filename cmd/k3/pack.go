package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/pack"
)

func packCommand() *cobra.Command {
	o := pack.Options{Cache: cacheDir()}
	var quiet bool
	cmd := &cobra.Command{
		Use:   "pack [flags] MODEL DIR",
		Short: "Copy the trunk of a model to a faster disk",
		Long: "Copy the trunk of a model (demo is the built-in one) to DIR: the weights of its layers but for the routed experts. That is 7 %\n" +
			"of the released model, 109 GB, and all of it is needed by every token. --trunk DIR then reads it from there. The format is\n" +
			"that of kimi-k3-in-c, so that packs made by either serve both.\n\n" +
			"--compress makes a pack of this program's own that is some 30 % smaller, on the disk and in memory, and loses nothing: the\n" +
			"weights are expanded, bit for bit, when they are used. It holds lm_head, too: about 78 GB of the released model, and up to\n" +
			"84 GB while that is not known. --trunk prefers it where both are.\n\n" +
			"What the disk must have free is said, and looked at, before anything is written. With --force that is room for the new pack\n" +
			"beside the old one, which stays until the new one is whole.\n\n" +
			"Interrupted, the same command goes on where it stopped. A pack is read back before it gets its name; one that is there\n" +
			"already is read back and compared with its checksums.",
		Example: "  k3 pack ~/k3model /fast/k3trunk && k3 run --model ~/k3model --trunk /fast/k3trunk --prompt Hello",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return ui.Usagef("%s takes two arguments, a model's directory and one for the pack, and got %d", cmd.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return packModel(cmd, args[0], args[1], o, quiet) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&o.Compress, "compress", false, "store about 11.2 bits a weight instead of 16, without loss")
	flags.BoolVar(&o.Force, "force", false, "replace the pack that is in DIR; one of the other kind stays if it is of the same model")
	flags.BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return cmd
}

func packModel(cmd *cobra.Command, model, dir string, o pack.Options, quiet bool) error {
	files, err := modelFiles(model, configFile)
	if err != nil {
		return err
	}
	if err := mayBeDirectory(dir); err != nil {
		return err
	}
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	line := ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), quiet)
	defer line.Clear()
	line.Opening(model)
	m, err := checkpoint.Open(ctx, files)
	if ctx.Err() != nil {
		return ui.ErrInterrupted
	}
	if err != nil {
		return err
	}
	defer m.Close()
	o.Room = func(needed, free int64) {
		has := "the disk does not say what is free"
		if free >= 0 {
			has = ui.Size(free) + " free"
		}
		line.Notice(fmt.Sprintf("%s: up to %s needed, %s", dir, ui.Size(needed), has))
	}
	var p ui.Pace
	verifying := false
	o.Progress = func(at pack.Progress) {
		now := time.Now()
		if at.Verifying != verifying {
			verifying, p = at.Verifying, ui.Pace{}
		}
		if line.Fresh(now) {
			return
		}
		what := "writing"
		if verifying {
			what = "reading back"
		}
		line.Show(now, fmt.Sprintf("%s %s of %s (%s)%s", what, ui.Size(at.Done), ui.Size(at.Total), ui.Percent(at.Done, at.Total),
			p.Update(now, at.Done, at.Total)))
	}
	start := time.Now()
	r, err := pack.Write(ctx, m, dir, o)
	line.Clear()
	switch {
	case errors.Is(err, context.Canceled):
		return ui.WithCode(ui.ExitInterrupted, ui.WithHint(errors.New(ui.Interrupted), "the same command goes on where it stopped"))
	case errors.Is(err, pack.ErrExists):
		return ui.WithCode(ui.ExitUsage, ui.WithHint(err, "--force replaces what is there"))
	case errors.Is(err, pack.ErrSpace) && !o.Compress:
		return ui.WithHint(err, "--compress makes a pack that is some 30 % smaller")
	case errors.Is(err, pack.ErrFormat):
		return ui.WithHint(err, "the same command with --force writes it anew")
	case err != nil:
		return err
	}
	if r.Before {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: the pack of %s is whole: %s, %s, read in %s\n", dir, model,
			ui.Plural(r.Layers, "layer", "layers"), ui.Size(r.Bytes), ui.Seconds(time.Since(start).Seconds()))
		return err
	}
	into := ui.Size(r.Bytes)
	if o.Compress {
		into = fmt.Sprintf("%s (%s of %s)", into, ui.Percent(r.Bytes, r.Raw), ui.Size(r.Raw))
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: packed %s of %s into %s in %s and read it back; --trunk %s uses it\n", dir,
		ui.Plural(r.Layers, "layer", "layers"), model, into, ui.Seconds(time.Since(start).Seconds()), ui.QuotePath(dir))
	return err
}
