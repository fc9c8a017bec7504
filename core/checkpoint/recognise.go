package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/content"
	"github.com/k3infer/k3/core/internal/fault"
	"github.com/k3infer/k3/core/internal/strictjson"
)

var (
	// ErrOther says that something is not a checkpoint of Kimi K3 but something else, which the message names: another
	// model, a cache of downloads, a pack. Such errors match ErrConfig, too.
	ErrOther = errors.New("not a checkpoint of Kimi K3")
	// ErrNothing says that there is nothing where a checkpoint should be.
	ErrNothing = errors.New("nothing there")
	// ErrUnfinished says that files of a checkpoint are there and others are not: a download was not finished.
	ErrUnfinished = errors.New("unfinished checkpoint")
)

// otherError is an error of the kind ErrOther.
type otherError struct {
	where string // "checkpoint: parse config.json: ", or nothing
	text  string
}

func (e *otherError) Error() string        { return e.where + e.text }
func (e *otherError) Is(target error) bool { return target == ErrOther || target == ErrConfig }

func otherf(format string, args ...any) error { return &otherError{text: fmt.Sprintf(format, args...)} }

// foreignError says what is in a file in place of what ought to be there.
type foreignError struct{ what string }

func (e *foreignError) Error() string        { return "this is " + e.what }
func (e *foreignError) Is(target error) bool { return target == ErrFormat }

// foreign looks at the beginning of a file that cannot be read; it gives nil for what it does not know.
func foreign(f disk.File) error {
	head := make([]byte, min(f.Size(), content.Head))
	if disk.ReadFull(f, head, 0) != nil {
		return nil
	}
	if what := content.Recognise(head); what != "" {
		return &foreignError{what}
	}
	return nil
}

// Recognise says why the directory at path cannot be a checkpoint of Kimi K3, or have the files that are needed of one:
// any of needed, "config.json" standing for all of the model. It looks at names and at config.json only, and leaves the
// rest to Open. The errors match ErrOther, ErrNothing, ErrUnfinished or ErrConfig, unless reading failed, and do not
// name path.
func Recognise(path string, needed ...string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(path, "~"):
		if _, err := os.UserHomeDir(); err != nil {
			return otherf("the home directory is not known (%v): write the path in full", err)
		}
		return otherf("the ~ at its beginning was not expanded: write the path in full")
	case errors.Is(err, fs.ErrNotExist):
		return fault.Errorf(ErrNothing, "there is no such directory")
	case errors.Is(err, fs.ErrPermission):
		return noPermission(err)
	case err != nil:
		return err
	case !info.IsDir():
		return recogniseFile(path)
	}
	d := directory{path: path, files: disk.Dir(path)}
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrPermission) {
		return noPermission(err)
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		d.names = append(d.names, e.Name())
	}
	return d.recognise(needed)
}

func noPermission(err error) error {
	return fmt.Errorf("this user may not read it (%w)", fs.ErrPermission)
}

func recogniseFile(path string) error {
	dir, name := filepath.Split(path)
	f, err := disk.Dir(filepath.Clean(dir)).Open(name)
	if err == nil {
		defer f.Close()
		if what := (*foreignError)(nil); errors.As(foreign(f), &what) {
			return otherf("%v", what)
		}
		if _, err := os.Stat(filepath.Join(dir, "config.json")); err == nil {
			return otherf("not a directory: the model is all of %s", filepath.Clean(dir))
		}
	}
	return otherf("not a directory")
}

// directory is one that may have a checkpoint.
type directory struct {
	path  string
	files disk.Files
	names []string // of everything in it, sorted
}

// having lists the names with an ending.
func (d *directory) having(endings ...string) (list []string) {
	for _, name := range d.names {
		if slices.ContainsFunc(endings, func(e string) bool { return strings.EqualFold(filepath.Ext(name), e) }) {
			list = append(list, name)
		}
	}
	return list
}

func (d *directory) has(name string) bool { return slices.Contains(d.names, name) }

func (d *directory) recognise(needed []string) error {
	if d.has(configFile) {
		name, data, err := readSmall(d.files, configFile)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return fmt.Errorf("%s: %w", configFile, noPermission(err))
		case err != nil:
			return nil // whoever opens it says why
		}
		_, err = parseConfig(name, data)
		switch other := (*otherError)(nil); {
		case errors.As(err, &other):
			return otherf("%s", other.text)
		case err == nil && slices.Contains(needed, configFile):
			return d.weights()
		case slices.Contains(needed, configFile):
			return nil // Open says what is wrong with config.json, and verify what is wrong besides
		}
	}
	if slices.ContainsFunc(needed, d.has) {
		return nil
	}
	if err := d.instead(); err != nil {
		return err
	}
	return d.lacks(needed)
}

// instead says what a directory is that has nothing of what is needed; it gives nil if nobody can tell.
func (d *directory) instead() error {
	if err := d.below(); err != nil {
		return err
	}
	switch list := d.having(".gguf"); {
	case len(list) > 0:
		return otherf("%s: this is GGUF, which k3 does not read", firstOf(list))
	case d.has("trunk.json") || d.has("trunk-compressed.json"):
		return otherf("this is a pack, a copy of a model's trunk: --trunk takes it, --model the checkpoint it was made from")
	case d.has("adapter_config.json"):
		return otherf("this is a LoRA adapter, not a model")
	}
	visible := slices.ContainsFunc(d.names, func(name string) bool { return !strings.HasPrefix(name, ".") })
	begun := d.begun()
	switch {
	case begun > 0:
		return fault.Errorf(ErrUnfinished, "the download is not finished: %s under way",
			count(begun, "file is", "files are"))
	case !visible && (d.has(".k3") || d.has(".cache")):
		return fault.Errorf(ErrUnfinished, "the download is not finished: no file of it is whole")
	case !visible:
		return fault.Errorf(ErrNothing, "the directory is empty")
	}
	return nil
}

// lacks says that none of what is needed is in a directory of other files.
func (d *directory) lacks(needed []string) error {
	what := strings.Join(needed, " or ")
	if shards := d.having(".safetensors"); len(shards) > 0 || d.has(configFile) {
		forms := d.other("tokenizer.model", "vocab.json", "spiece.model", "sentencepiece.bpe.model")
		if len(forms) > 0 && !slices.Contains(needed, configFile) {
			return otherf("the tokenizer is in another form (%s); k3 reads %s", forms[0], what)
		}
		return fault.Errorf(ErrUnfinished, "there is no %s", what)
	}
	if list := d.having(".bin", ".pt", ".pth"); len(list) > 0 {
		return otherf("%s: this is not safetensors, and %s is missing", firstOf(list), what)
	}
	list := some{}
	for _, name := range d.names {
		list.add(func() string { return show(name) })
	}
	const few = 3
	list.first = list.first[:min(few, len(list.first))]
	return otherf("it is not a model's directory: it has %s, but no %s", &list, what)
}

// other lists which of some names are there.
func (d *directory) other(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return !d.has(name) })
}

// below says where the model is if it is further down: in a cache of Hugging Face's programs, or in a folder of its
// own.
func (d *directory) below() error {
	for _, depth := range []struct{ pattern, what string }{
		{"snapshots/*/", "this is a Hugging Face cache of one model"},
		{"models--*/snapshots/*/", "this is a Hugging Face cache"},
		{"hub/models--*/snapshots/*/", "this is a Hugging Face cache"},
		{"huggingface/hub/models--*/snapshots/*/", "this is a cache"},
		{"*/", "this is not a model's directory"},
	} {
		found, err := fs.Glob(os.DirFS(d.path), depth.pattern+configFile)
		if err != nil || len(found) == 0 {
			continue
		}
		slices.SortStableFunc(found, func(a, b string) int { return d.rank(a) - d.rank(b) })
		at := filepath.Join(d.path, filepath.FromSlash(strings.TrimSuffix(found[0], "/"+configFile)))
		if len(found) > 1 {
			return otherf("%s: use %s, one of %d", depth.what, at, len(found))
		}
		return otherf("%s: use %s", depth.what, at)
	}
	list, err := fs.Glob(os.DirFS(d.path), "models--*")
	if err == nil && len(list) > 0 || d.has("snapshots") && d.has("blobs") {
		return otherf("this is a Hugging Face cache without a whole model in it")
	}
	return nil
}

// rank prefers a Kimi K3 to other models, and the revision that its repository calls main.
func (d *directory) rank(config string) int {
	rank := 4
	if strings.Contains(strings.ToLower(config), "kimi-k3") {
		rank -= 2
	}
	if repo, revision, ok := strings.Cut(filepath.ToSlash(filepath.Dir(config)), "snapshots/"); ok {
		main, err := os.ReadFile(filepath.Join(d.path, repo, "refs", "main"))
		if err == nil && strings.TrimSpace(string(main)) == revision {
			rank--
		}
	}
	return rank
}

// begun counts the files of downloads that are under way.
func (d *directory) begun() int {
	n := len(d.having(".partial", ".incomplete", ".aria2", ".part", ".crdownload"))
	if list, err := fs.Glob(os.DirFS(d.path), ".cache/huggingface/download/*.incomplete"); err == nil {
		n += len(list)
	}
	return n
}

// weights looks for the shards, as far as their names tell: a few that are missing are for Open to list.
func (d *directory) weights() error {
	const few = 4
	var shards []string
	for _, name := range d.having(".safetensors") {
		if strings.HasPrefix(name, "model-") || name == "model.safetensors" {
			shards = append(shards, name)
		}
	}
	if len(shards) == 0 && !d.has(indexFile) {
		if err := d.instead(); err != nil {
			return err
		}
		if list := d.having(".bin", ".pt", ".pth"); len(list) > 0 {
			return otherf("%s: this is not safetensors, the form that k3 reads", firstOf(list))
		}
		return fault.Errorf(ErrUnfinished, "config.json is there, but no weights (*.safetensors)")
	}
	for _, name := range shards {
		if d.has(name + ".aria2") {
			return fault.Errorf(ErrUnfinished, "the download is not finished: %s.aria2 says so of %s", name, name)
		}
	}
	missing := 0
	all, err := eachMissing(shards, func(string) { missing++ })
	if err == nil && (missing > few || missing > 0 && d.begun() > 0) {
		return fault.Errorf(ErrUnfinished, "the download is not finished: %d of %d shards are missing", missing, all)
	}
	if len(shards) == 0 {
		if begun := d.begun(); begun > 0 {
			return fault.Errorf(ErrUnfinished, "the download is not finished: no shard is whole, %s under way",
				count(begun, "file is", "files are"))
		}
		return fault.Errorf(ErrUnfinished, "all shards that %s names are missing", indexFile)
	}
	return nil
}

// firstOf is the first of some names and how many there are besides.
func firstOf(list []string) string {
	return (&some{first: []string{show(list[0])}, n: len(list)}).short()
}

func count(n int, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%d %s", n, many)
}

var kimi = regexp.MustCompile(`^kimi_k([0-9])[_.]?([0-9]*)$`)

// models are names of models by the model_type of their config.json.
var models = map[string]string{
	"kimi_vl":      "Kimi VL",
	"kimi_audio":   "Kimi Audio",
	"deepseek_v2":  "DeepSeek V2",
	"deepseek_v3":  "DeepSeek V3, or a model made like it",
	"deepseek_v32": "DeepSeek V3.2",
}

// otherModel says what a config.json describes if that is not Kimi K3 as this engine reads it: words that go on after
// "this is". It gives "" for one that is Kimi K3, or means to be.
func otherModel(root strictjson.Value) string {
	get := func(v strictjson.Value, key string) string {
		v, _ = v.Get(key)
		if v.Kind != strictjson.String {
			return ""
		}
		return v.Text
	}
	if kind := get(root, "peft_type"); kind != "" {
		of := ""
		if base := get(root, "base_model_name_or_path"); base != "" {
			of = " of " + show(base)
		}
		return fmt.Sprintf("a LoRA adapter%s (peft_type %s), not a model", of, show(kind))
	}
	architecture := ""
	if list, _ := root.Get("architectures"); len(list.Items) > 0 && list.Items[0].Kind == strictjson.String {
		architecture = list.Items[0].Text
	}
	modelType := get(root, "model_type")
	drafters := []string{"eagle", "dflash", "dspark", "speculat", "medusa", "draft"}
	drafter := get(root, "speculators_model_type")
	for _, name := range []string{modelType, architecture} {
		like := func(part string) bool { return strings.Contains(strings.ToLower(name), part) }
		if drafter == "" && slices.ContainsFunc(drafters, like) {
			drafter = name
		}
	}
	if drafter != "" {
		return fmt.Sprintf("a drafter (%s), which guesses tokens for a model, not a model", show(drafter))
	}
	text, nested := root.Get("text_config")
	switch {
	case modelType == "kimi_k3":
		return otherNumbers(root, text)
	case modelType == "kimi_linear" && !nested:
		if likeKimiLinear(root) {
			return "Kimi Linear (model_type kimi_linear), which this version of k3 does not run yet"
		}
		return otherNumbers(root, text)
	case modelType == "kimi_linear":
		return ""
	case modelType == "":
		_, there := root.Get("model_type")
		if there || nested || architecture == "" || strings.HasPrefix(architecture, "Kimi") {
			return ""
		}
		return fmt.Sprintf("a model of the architecture %s, not Kimi K3", show(architecture))
	}
	name := models[modelType]
	if m := kimi.FindStringSubmatch(modelType); m != nil {
		name = strings.TrimSuffix("Kimi K"+m[1]+"."+m[2], ".")
	}
	number := func(key string) string { v, _ := root.Get(key); return v.Text }
	if modelType == "deepseek_v3" && number("vocab_size") == "163840" {
		switch {
		case number("n_routed_experts") == "384":
			name = "Kimi K2"
		case number("hidden_size") == "2048":
			name = "Moonlight"
		}
	}
	if name == "" {
		return fmt.Sprintf("a model with model_type %s, not Kimi K3", quote(modelType))
	}
	return fmt.Sprintf("%s (model_type %s), not Kimi K3", name, show(modelType))
}

// likeKimiLinear tells Kimi Linear from a flat Kimi K3, which has the same model_type: it has none of what K3 added to
// it.
func likeKimiLinear(root strictjson.Value) bool {
	for _, key := range []string{
		"attn_res_block_size", "routed_expert_hidden_size", "activation_situ_beta", "situ_beta", "gate_lower_bound",
	} {
		if _, ok := root.Get(key); ok {
			return false
		}
	}
	_, linear := root.Get("linear_attn_config")
	return linear
}

// otherNumbers says so if a Kimi K3 has its weights in numbers that this engine does not read.
func otherNumbers(root, text strictjson.Value) string {
	if q, ok := root.Get("quantization"); ok && q.Kind == strictjson.Object {
		if _, ok := q.Get("group_size"); ok {
			return said("MLX", "quantization")
		}
	}
	for _, scope := range []strictjson.Value{root, text} {
		q, _ := scope.Get("quantization_config")
		field := func(key string) string { v, _ := q.Get(key); return v.Text }
		method, format := strings.ToLower(field("quant_method")), strings.ToLower(field("format"))
		algorithm := strings.ToLower(field("quant_algo"))
		switch {
		case format == "nvfp4-pack-quantized", strings.Contains(algorithm, "nvfp4"):
			return said("NVFP4", "quantization_config")
		case method == "fp8", method == "fbgemm_fp8", format == "float-quantized", algorithm == "fp8":
			return said("FP8", "quantization_config")
		case format == "pack-quantized", format == "int-quantized":
			return said("integers", "format "+format)
		case slices.Contains(otherMethods, method):
			return said(strings.ToUpper(method), "quantization_config")
		}
	}
	return ""
}

// otherMethods are values of quant_method that say enough.
var otherMethods = []string{"gptq", "awq", "bitsandbytes", "auto-round", "hqq", "aqlm", "quark", "modelopt"}

func said(form, where string) string {
	return fmt.Sprintf("Kimi K3 in %s (%s), which k3 does not read: it reads the released MXFP4, BF16, F16 and F32",
		form, where)
}
