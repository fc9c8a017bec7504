package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/hub"
	"github.com/k3infer/k3/core/tokenizer"
	"github.com/k3infer/k3/presets"
	"github.com/k3infer/k3/presets/demo"
)

// maxText is the most text or ids read from one file.
const maxText = 256 << 20

// addConfigFlags gives a command the flags of the named settings.
func addConfigFlags(cmd *cobra.Command, names ...string) {
	presets.AddFlags(cmd.Flags(), names...)
}

// loadConfig decides the configuration of a command to which addConfigFlags was applied.
func loadConfig(cmd *cobra.Command) (presets.Config, error) {
	return presets.Load(cmd.Flags(), os.Environ())
}

// configFile is the file that a directory must have to be a model's.
const configFile = "config.json"

// modelFiles returns the files of the model that the configuration names; it must have one of needed.
func modelFiles(model string, needed ...string) (disk.Files, error) {
	if model == presets.DemoModel {
		return demo.Files(), nil
	}
	return disk.Dir(model), recognise(model, needed...)
}

// recognise says what is wrong with the directory of a model, if that can be said without opening the model, and what helps.
func recognise(dir string, needed ...string) error {
	err := checkpoint.Recognise(dir, needed...)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, checkpoint.ErrNothing):
		return ui.WithCode(ui.ExitInput, ui.WithHint(fmt.Errorf("no model in %s: %w", dir, err),
			fmt.Sprintf("k3 download %s fetches it (1.56 TB); --model demo is the small model built in", ui.QuotePath(dir))))
	case errors.Is(err, checkpoint.ErrUnfinished):
		return ui.WithCode(ui.ExitInput, ui.WithHint(fmt.Errorf("model %s: %w", dir, err), goOn(dir)+" fetches what is missing"))
	}
	return ui.Inputf("model %s: %w", dir, err)
}

// goOn is the command that goes on with the download of a directory; missing are shards it lacks, as far as they are known.
func goOn(dir string, missing ...string) string {
	names, _ := disk.Dir(dir).List() // without them the command asks for more than it need
	isReleased := slices.ContainsFunc(append(names, missing...), releasedShard)
	repo, endpoint := "", ""
	if m, err := hub.ReadManifest(dir); err == nil {
		repo, endpoint = m.Repo, m.Endpoint
	}
	return strings.Join(downloadArguments(dir, repo, endpoint, isReleased), " ")
}

// releasedShard tells by the name of a shard whether its model can be the released one.
func releasedShard(name string) bool { return strings.HasSuffix(name, "-of-000096.safetensors") }

// engineOptions are the options that every command opens the model with; notices go to the user above the progress line.
func engineOptions(c presets.Config, files disk.Files, line *ui.Progress) core.Options {
	var trunk disk.Files
	if c.Trunk != "" {
		trunk = disk.Dir(c.Trunk)
	}
	return core.Options{
		Files: files, Trunk: trunk, TrunkIfThere: c.TrunkIfThere, Backend: c.Compute.Backend, Threads: c.Compute.Threads, Context: c.Context, PrefillChunk: c.PrefillChunk,
		Memory: int64(c.Memory.Total), TrunkMemory: int64(c.Memory.Trunk), ExpertMemory: int64(c.Memory.Experts), Guesses: c.Speculate,
		Policy: c.Cache.Policy, Readers: c.IO.Readers, Buffered: c.IO.Direct == "off",
		Unchecked: c.IO.Check == "off", Cache: cacheDir(), Notice: line.Notice,
	}
}

// openEngine opens the model. Where states are to be saved, it finds out whose they will be at once: that cannot be known any
// more when the files change on the way.
func openEngine(ctx context.Context, o core.Options, saves bool) (*core.Engine, error) {
	engine, err := core.Open(ctx, o)
	if err == nil && saves {
		if _, err = engine.Fingerprint(); err != nil {
			err = errors.Join(err, engine.Close())
			engine = nil
		}
	}
	return engine, err
}

// cacheDir is where k3 remembers what it would have to find out again, "" if this user has no such place.
func cacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	dir = filepath.Join(dir, "k3")
	if os.MkdirAll(dir, 0o700) != nil {
		return ""
	}
	return dir
}

// announceDemo says on w that no model was asked for.
func announceDemo(w io.Writer, c presets.Config, flags *pflag.FlagSet) {
	if c.Model == presets.DemoModel && c.Preset == "" && !flags.Changed("model") {
		fmt.Fprintln(w, "k3: using the built-in demonstration model, which knows little; --model DIR names another")
	}
}

// loadTokenizer loads the tokenizer of the model.
func loadTokenizer(model string) (*tokenizer.Tokenizer, error) {
	files, err := modelFiles(model, tokenizer.Names...)
	if err != nil {
		return nil, err
	}
	return tokenizer.Load(files)
}

// anyTokenizer loads the tokenizer of a model, or gives nil and why it has none that can be used. That is an error if the
// tokenizer is needed and is there.
func anyTokenizer(files disk.Files, needed bool) (tok *tokenizer.Tokenizer, without string, err error) {
	tok, err = tokenizer.Load(files)
	switch {
	case err == nil:
		return tok, "", nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Sprintf("model %s has no tokenizer (%s)", files.Name(), strings.Join(tokenizer.Names, " or ")), nil
	case needed:
		return nil, "", err
	}
	return nil, fmt.Sprintf("the tokenizer cannot be used (%s)", ui.OneLine(err)), nil
}

// mayBeDirectory refuses the name of a file where a directory is to be written.
func mayBeDirectory(dir string) error {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return ui.Usagef("%s: not a directory", dir)
	}
	return nil
}

// openInput opens the file at path, or stdin for "-".
func openInput(cmd *cobra.Command, path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(cmd.InOrStdin()), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, ui.Inputf("%w", err)
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		f.Close()
		return nil, ui.Inputf("%s: is a directory, not a file", path)
	}
	return f, nil
}

// readInput reads the text of the file at path, or of stdin for "-".
func readInput(cmd *cobra.Command, path string) (string, error) {
	in, err := openInput(cmd, path)
	if err != nil {
		return "", err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxText+1))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	if len(data) > maxText {
		return "", ui.Inputf("%s: more than %d bytes", path, maxText)
	}
	if err := refuseUTF16(path, string(data)); err != nil {
		return "", err
	}
	return string(withoutMark(cmd, path, data)), nil
}

// withoutMark returns the text of a file without the byte order mark that Windows programs write in front, which is no part of
// the text, and says so on stderr.
func withoutMark(cmd *cobra.Command, path string, data []byte) []byte {
	rest, marked := bytes.CutPrefix(data, []byte("\ufeff"))
	if quiet, _ := cmd.Flags().GetBool("quiet"); marked && !quiet { // false where there is no such flag
		fmt.Fprintf(cmd.ErrOrStderr(), "k3: %s: the byte order mark at the beginning is left out\n", path)
	}
	return rest
}

// refuseUTF16 refuses text that begins with the byte order mark of UTF-16; what names the text in the message.
func refuseUTF16(what, text string) error {
	if strings.HasPrefix(text, "\xff\xfe") || strings.HasPrefix(text, "\xfe\xff") {
		return ui.Inputf("%s: this is UTF-16, as Windows PowerShell writes it; save it as UTF-8", what)
	}
	return nil
}

// sizeOf returns how many bytes an input has, -1 if that is not known.
func sizeOf(in io.Reader) int64 {
	if f, ok := in.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			return info.Size()
		}
	}
	return -1
}

// room is how many tokens a text can have, whatever it says.
type room struct {
	tokens  int
	longest int   // bytes of a token
	why     error // there are not more: core.ErrContext or core.ErrNoFit
}

// newRoom finds the room for a text of the model behind taken tokens, as far as it shows before the text is read.
func newRoom(c presets.Config, options core.Options, config *checkpoint.Config, tok *tokenizer.Tokenizer, taken int) (room, error) {
	const usual = 4096 // where next to nothing fits, the plan says what would
	r := room{tokens: 1 << 30, longest: tok.Longest(), why: core.ErrContext}
	if limit := cmp.Or(c.Context, config.MaxPositions); limit > 0 {
		r.tokens = limit
	}
	fits, err := core.MostContext(config, options, r.tokens)
	if err != nil {
		return r, err
	}
	if fits = max(fits, usual); fits < r.tokens {
		r.tokens, r.why = fits, core.ErrNoFit
	}
	r.tokens = max(r.tokens-taken, 0)
	return r, nil
}

// bytes is how long a text of so many tokens can be.
func (r room) bytes() int64 { return int64(r.tokens) * int64(r.longest) }

// refuse says that the text called what is too long.
func (r room) refuse(what string, bytes int64) error {
	return fmt.Errorf("%s: %w: its %d bytes are at least %d tokens, and there is room for %d", what, r.why, bytes,
		(bytes+int64(r.longest)-1)/int64(r.longest), r.tokens)
}

// errTooLong ends the reading of a text that has no room.
var errTooLong = errors.New("too long")

// encode reads a text called what, of size bytes if that is known, and returns its ids. It never holds more of the text than a part,
// but for what keep gets of it, and no more ids than there is room for.
func (r room) encode(what string, in io.Reader, size int64, tok *tokenizer.Tokenizer, replace bool, keep *strings.Builder) ([]int, error) {
	if size > r.bytes() {
		return nil, r.refuse(what, size)
	}
	if replace { // which takes the whole
		data, err := io.ReadAll(io.LimitReader(in, min(r.bytes(), maxText)+1))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", what, err)
		}
		if n := int64(len(data)); n > min(r.bytes(), maxText) {
			return nil, r.refuse(what, n)
		}
		in = strings.NewReader(tokenizer.ReplaceInvalid(string(data)))
	}
	var ids []int
	read := int64(0)
	err := tok.Chunks(in, func(part string) error {
		if len(ids) > r.tokens || read > r.bytes() {
			return errTooLong
		}
		if read += int64(len(part)); keep != nil {
			keep.WriteString(part)
		}
		more, err := tok.Encode(part)
		ids = append(ids, more...)
		return err
	})
	switch {
	case errors.Is(err, errTooLong):
		return nil, fmt.Errorf("%s: %w: its first %d bytes are %d tokens, and there is room for %d", what, r.why, read, len(ids), r.tokens)
	case errors.Is(err, tokenizer.ErrInvalidUTF8):
		return nil, fmt.Errorf("%s: %w (--replace-invalid replaces it)", what, err)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return ids, nil
}

// checkText refuses text that is not UTF-8, or replaces what is not; what names the text in the message.
func checkText(what, text string, replace bool) (string, error) {
	if err := refuseUTF16(what, text); err != nil {
		return "", err
	}
	if utf8.ValidString(text) {
		return text, nil
	}
	if replace {
		return tokenizer.ReplaceInvalid(text), nil
	}
	at := 0
	for r, size := utf8.DecodeRuneInString(text); r != utf8.RuneError || size > 1; r, size = utf8.DecodeRuneInString(text[at:]) {
		at += size
	}
	return "", fmt.Errorf("%s: %w: byte %d is 0x%02X (--replace-invalid replaces it)", what, tokenizer.ErrInvalidUTF8, at, text[at])
}

// parseIDs reads token ids separated by commas or white space, with or without the brackets of a list around them.
func parseIDs(text string) ([]int, error) {
	if text = strings.TrimSpace(text); strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		text = text[1 : len(text)-1]
	}
	fields := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) })
	ids := make([]int, 0, len(fields))
	for _, f := range fields {
		id, err := strconv.ParseUint(f, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%q is not a token id", f)
		}
		ids = append(ids, int(id))
	}
	return ids, nil
}

// formatIDs writes ids as parseIDs reads them.
func formatIDs(ids []int) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(id))
	}
	return b.String()
}
