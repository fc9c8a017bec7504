package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/hub"
)

// The released model, at the commit this version was made for.
const (
	releasedRepo     = "moonshotai/Kimi-K3"
	releasedRevision = "9f62e4e9fffbd0a83ddd60e1c209d828994b3569"
)

// downloadFlags are the flags of k3 download.
type downloadFlags struct {
	repo, revision, endpoint   string
	include, dirs              []string
	layers, connections, tries int
	force, dryRun, asJSON      bool
	quiet, yes                 bool
}

func downloadCommand() *cobra.Command {
	var f downloadFlags
	cmd := &cobra.Command{
		Use:   "download [flags] DIR",
		Short: "Fetch a model into a directory, or go on with that",
		Long: "Fetch a model from Hugging Face, or from an endpoint that speaks its protocol, into a directory. Interrupted however it may be,\n" +
			"the same command goes on where it stopped. A file has its name when its checksum is right, and not before.\n\n" +
			"The files of the model are fetched: weights, configuration, tokenizer, licence. --include 'PATTERN' fetches others.\n" +
			"The endpoint is --endpoint, else $HF_ENDPOINT, else " + hub.DefaultEndpoint + "; a token is taken from $HF_TOKEN or the file that\n" +
			"Hugging Face's tools keep, and is sent to no other host.\n\n" +
			"  k3 download --dry-run ~/k3model                  what would be fetched, and whether there is room\n" +
			"  k3 download ~/k3model                            1.56 TB\n" +
			"  k3 download ~/k3model --dir /disk1 --dir /disk2  weights spread over two disks, linked to from ~/k3model",
		Args: oneArgument("the directory of the model"),
		RunE: func(cmd *cobra.Command, args []string) error { return download(cmd, args[0], f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.repo, "repo", "", "fetch from the repository `OWNER/NAME` (default: what DIR was fetched from, else "+releasedRepo+")")
	flags.StringVar(&f.revision, "revision", "", "fetch `REVISION`, a commit, branch or tag (default: what DIR was fetched from, else "+releasedRevision[:12]+" of Kimi-K3)")
	flags.StringVar(&f.endpoint, "endpoint", "", "fetch from the `URL` of another hub (default: $HF_ENDPOINT, else "+hub.DefaultEndpoint+")")
	flags.StringArrayVar(&f.include, "include", nil, "fetch only files that match `PATTERN`, such as '*.json'; may be repeated")
	flags.IntVar(&f.layers, "layers", 0, "fetch only the weights of the first `N` layers, and those of no layer")
	flags.StringArrayVar(&f.dirs, "dir", nil, "put the weights into `DIR`, linked to from the model's; may be repeated to spread them over disks")
	flags.IntVar(&f.connections, "connections", 8, "ask for `N` ranges at a time")
	flags.IntVar(&f.tries, "tries", 0, "give up after `N` attempts in a row that bring nothing (default: 12, or 3 if no host answers at all)")
	flags.BoolVar(&f.force, "force", false, "replace files that are there but are not the repository's")
	flags.BoolVar(&f.dryRun, "dry-run", false, "say what would be fetched, and fetch nothing")
	flags.BoolVar(&f.asJSON, "json", false, "write JSON")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "no progress")
	flags.BoolVarP(&f.yes, "yes", "y", false, "do not ask whether a DIR that is called as a repository is meant as a directory")
	return cmd
}

func download(cmd *cobra.Command, dir string, f downloadFlags) error {
	switch {
	case f.layers < 0 || cmd.Flags().Changed("layers") && f.layers == 0:
		return ui.Usagef("--layers: %d: must be at least 1", f.layers)
	case f.layers > 0 && f.include != nil:
		return ui.Usagef("--layers and --include: only one of them")
	case f.connections < 1 || f.connections > 64:
		return ui.Usagef("--connections: %d: must be from 1 to 64", f.connections)
	case f.tries < 0 || cmd.Flags().Changed("tries") && f.tries == 0:
		return ui.Usagef("--tries: %d: must be at least 1", f.tries)
	}
	if err := mayBeDirectory(dir); err != nil {
		return err
	}
	doubtful := f.repo == "" && !f.yes && likeRepository(dir)
	// A directory goes on with what it was begun with.
	if m, err := hub.ReadManifest(dir); err == nil && (f.repo == "" || f.repo == m.Repo) {
		if f.repo = m.Repo; f.revision == "" {
			f.revision = m.Commit
		}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) && !f.force {
		return ui.WithCode(ui.ExitInput, ui.WithHint(err, "--force replaces it"))
	}
	if f.repo == "" {
		f.repo = releasedRepo
	}
	if f.revision == "" {
		if f.revision = "main"; f.repo == releasedRepo {
			f.revision = releasedRevision
		}
	}
	if f.endpoint == "" {
		f.endpoint = os.Getenv("HF_ENDPOINT")
	}
	token, err := hub.Token(os.Getenv)
	if err != nil {
		return err
	}
	line := ui.NewProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), f.quiet)
	defer line.Clear()
	agent := "k3 (" + runtime.GOOS + ")"
	c, err := hub.New(hub.Options{Endpoint: f.endpoint, Token: token, Tries: f.tries, UserAgent: agent, Retry: retries(line)})
	if err != nil {
		return hubError(err, dir, f)
	}
	defer c.Close()
	if c.TokenWithheld() {
		fmt.Fprintln(cmd.ErrOrStderr(), "k3: the token is not sent, since "+c.Endpoint()+" is not https")
	}
	if doubtful {
		if err := askForDirectory(cmd, c, line, dir, f); err != nil {
			return err
		}
	}

	ctx, stop := interruptible(cmd.Context())
	defer stop()
	line.Show(time.Now(), "looking up "+f.repo)
	s, err := c.Snapshot(ctx, f.repo, f.revision)
	if err != nil {
		return hubError(err, dir, f)
	}
	plan, err := c.MakePlan(ctx, s, hub.Request{Dir: dir, Dirs: f.dirs, Include: f.include, Layers: f.layers, Force: f.force})
	line.Clear()
	if f.dryRun && plan != nil {
		if e := writePlan(cmd.OutOrStdout(), plan, f.asJSON); e != nil {
			return e
		}
	}
	if err != nil {
		return hubError(err, dir, f)
	}
	if f.dryRun {
		return nil
	}
	var p ui.Pace
	result, err := c.Download(ctx, plan, hub.Config{
		Connections: f.connections,
		Progress:    func(at hub.Progress) { line.Show(time.Now(), downloadLine(&p, at)) },
		Done:        func(i hub.Item) { line.Notice(fmt.Sprintf("%s: %s, checksum right", i.Name, ui.Size(i.Size))) },
	})
	line.Clear()
	if err != nil {
		return hubError(err, dir, f)
	}
	if f.asJSON {
		return ui.WriteJSON(cmd.OutOrStdout(), struct {
			*hub.Plan
			Received int64   `json:"received"`
			Seconds  float64 `json:"seconds"`
		}{plan, result.Received, result.Elapsed.Seconds()})
	}
	if f.quiet {
		return nil
	}
	return writeDownloaded(cmd.ErrOrStderr(), plan, result, dir)
}

// retries tells of attempts that are made again. Connections that fail together for the same reason are one notice.
func retries(line *ui.Progress) func(hub.Retry) {
	var last string
	var until time.Time
	return func(r hub.Retry) {
		text := fmt.Sprintf("%s; attempt %d of %d", r.Cause, r.Attempt, r.Tries)
		now := time.Now()
		if text == last && now.Before(until) {
			return
		}
		last, until = text, now.Add(r.Wait)
		line.Notice(fmt.Sprintf("%s in %s", text, ui.LongTime(max(r.Wait, time.Second))))
	}
}

// likeRepository reports whether a directory that is not there is called as a repository is, so that it may be meant as
// one.
func likeRepository(dir string) bool {
	owner, _, ok := strings.Cut(dir, "/")
	if !ok || !hub.IsRepo(dir) {
		return false
	}
	_, err := os.Lstat(owner)
	return errors.Is(err, fs.ErrNotExist)
}

// askForDirectory makes sure that dir is not meant as the repository of that name, if there is one.
func askForDirectory(cmd *cobra.Command, c *hub.Client, line *ui.Progress, dir string, f downloadFlags) error {
	ctx, stop := interruptible(cmd.Context())
	line.Show(time.Now(), "looking up "+dir)
	_, err := c.Snapshot(ctx, dir, "main")
	line.Clear()
	stop() // Ctrl-C at the question below ends the program
	switch {
	case errors.Is(err, hub.ErrNotFound), errors.Is(err, hub.ErrAccess), errors.Is(err, hub.ErrRequest):
		return nil // a directory, then
	case err != nil:
		return hubError(err, dir, f)
	}
	what := f.repo
	if f.repo == releasedRepo {
		what += " (1.56 TB)"
	}
	is := fmt.Sprintf("%s is a repository of %s", dir, c.Endpoint())
	refused := ui.WithCode(ui.ExitUsage, ui.WithHint(fmt.Errorf("%s, and download wants a directory", is),
		fmt.Sprintf("k3 download --repo %s DIR fetches that repository into DIR; with --yes, %s goes into the directory ./%s",
			dir, what, dir)))
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return refused
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "k3: %s. Fetch %s into the directory ./%s? [y/N] ", is, what, dir)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); err != nil || answer != "y" && answer != "yes" {
		return refused
	}
	return nil
}

// writeDownloaded says what came of it.
func writeDownloaded(w io.Writer, p *hub.Plan, r hub.Result, dir string) error {
	if r.Files == 0 {
		_, err := fmt.Fprintf(w, "k3: %s, %s, all there with the right checksum\n", ui.Plural(len(p.Items), "file", "files"), ui.Size(p.Total))
		return err
	}
	rate := ""
	if s := r.Elapsed.Seconds(); s > 0 && r.Received > 0 {
		rate = fmt.Sprintf(" in %s, %s/s", ui.Seconds(s), ui.Size(int64(float64(r.Received)/s)))
	}
	_, err := fmt.Fprintf(w, "k3: %d of %s fetched, %s%s\nk3: k3 verify %s checks the model they make\n",
		r.Files, ui.Plural(len(p.Items), "file", "files"), ui.Size(r.Received), rate, ui.QuotePath(dir))
	return err
}

// hubError gives an error of package hub its exit code and says what to do.
func hubError(err error, dir string, f downloadFlags) error {
	is := func(target error) bool { return errors.Is(err, target) }
	hint := func(code int, format string, args ...any) error {
		return ui.WithCode(code, ui.WithHint(err, fmt.Sprintf(format, args...)))
	}
	switch {
	case errors.Is(err, context.Canceled):
		return ui.WithCode(ui.ExitInterrupted, ui.WithHint(errors.New(ui.Interrupted), "the same command goes on where it stopped"))
	case is(hub.ErrRequest):
		return ui.WithCode(ui.ExitUsage, err)
	case is(hub.ErrExists):
		return hint(ui.ExitInput, "--force replaces them; --dir or another directory leaves them alone")
	case is(hub.ErrManifest):
		return hint(ui.ExitInput, "--force lets the directory become the other one; another directory leaves it alone")
	case is(hub.ErrAccess):
		return hint(ui.ExitFailed, "set HF_TOKEN to a token with access to %s, and accept its terms on the hub if it has any", f.repo)
	case is(hub.ErrSpace):
		return hint(ui.ExitFailed, "--dir DIR, repeated, spreads the weights over several disks; --layers N fetches a part")
	case is(hub.ErrDigest), is(hub.ErrChanged):
		return hint(ui.ExitFailed, "the other files are kept; the same command tries these again")
	case is(hub.ErrNotFound), is(hub.ErrMetadata), is(hub.ErrBusy):
		return ui.WithCode(ui.ExitFailed, err)
	}
	return hint(ui.ExitFailed, "the same command goes on where it stopped")
}

// downloadLine is the progress line of a download.
func downloadLine(p *ui.Pace, at hub.Progress) string {
	if at.Checking {
		p.Start(at.Total)
		return fmt.Sprintf("checking %s of %s%s, %s", ui.Size(at.Done), ui.Size(at.Total), p.Update(time.Now(), at.Done, at.Total), at.Name)
	}
	p.Start(-at.Total)
	return fmt.Sprintf("%s of %s (%s)%s, %s", ui.Size(at.Done), ui.Size(at.Total), ui.Percent(at.Done, at.Total), p.Update(time.Now(), at.Done, at.Total), at.Name)
}

// writePlan says what a download would do.
func writePlan(w io.Writer, p *hub.Plan, asJSON bool) error {
	if asJSON {
		return ui.WriteJSON(w, p)
	}
	fmt.Fprintf(w, "%s at %s from %s\n\n", p.Repo, p.Commit, p.Endpoint)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "FILE\tBYTES\tNOW\tWHERE")
	for _, i := range p.Items {
		now := string(i.State)
		if i.State == hub.Partial {
			now = ui.Percent(i.Have, i.Size)
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", i.Name, i.Size, now, i.Path)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nto fetch: %s of %s in %s\n", ui.Size(p.Fetch), ui.Size(p.Total), ui.Plural(len(p.Items), "file", "files"))
	for _, d := range p.Disks {
		fmt.Fprintf(w, "disk of %s: %s free, %s needed\n", strings.Join(d.Dirs, ", "), ui.Size(d.Free), ui.Size(d.Need))
	}
	if slices.ContainsFunc(p.Items, func(i hub.Item) bool { return i.State == hub.Unchecked }) {
		fmt.Fprintln(w, "unchecked files are read first; those with the right checksum stay")
	}
	if slices.ContainsFunc(p.Items, func(i hub.Item) bool { return i.State == hub.Wrong }) {
		fmt.Fprintln(w, "wrong files are replaced with --force only")
	}
	return nil
}
