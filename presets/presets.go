// Package presets decides the configuration of a run: flags beat K3_* environment variables, which beat a configuration
// file, which beats a preset, which beats the defaults. The presets are the YAML files of this folder; a configuration file
// has the same form. Nothing is guessed: a key, variable or flag that does not exist is an error that suggests the nearest one, a
// value of the wrong type or out of range one that says what it must be.
package presets

import (
	"embed"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/k3infer/k3/core/sample"
)

// ErrConfig matches every error in a configuration: a usage error, not one of the run.
var ErrConfig = errors.New("configuration")

// DemoModel is the value of Config.Model that means the built-in demonstration model.
const DemoModel = "demo"

// Config is the whole configuration. A zero in a field that may be auto means auto.
type Config struct {
	Preset string `mapstructure:"-"` // the preset it began with, "" for none
	File   string `mapstructure:"-"` // the configuration file, "" for none

	Model string `mapstructure:"model"` // a directory, or DemoModel
	Trunk string `mapstructure:"trunk"` // the packed trunk's directory, or ""
	// TrunkIfThere says that the trunk's directory is a preset's choice, not the user's: a pack need not be there.
	TrunkIfThere bool `mapstructure:"-"`

	Memory  Memory  `mapstructure:"memory"`
	Cache   Cache   `mapstructure:"cache"`
	IO      IO      `mapstructure:"io"`
	Compute Compute `mapstructure:"compute"`

	Generate     Generate `mapstructure:"generate"`
	Context      int      `mapstructure:"context"`       // positions, or auto
	PrefillChunk int      `mapstructure:"prefill_chunk"` // tokens, or auto
	Speculate    int      `mapstructure:"speculate"`     // tokens guessed ahead; 0 is off
}

// Memory is how much of it may be used, in bytes, each or auto.
type Memory struct {
	Total   Size `mapstructure:"total"` // peak RSS of the whole process
	Trunk   Size `mapstructure:"trunk"`
	Experts Size `mapstructure:"experts"`
}

// Cache chooses the expert cache's policy by name.
type Cache struct {
	Policy string `mapstructure:"policy"`
}

// IO says how files are read.
type IO struct {
	Direct  string `mapstructure:"direct"`  // auto, or off: everything through the page cache
	Check   string `mapstructure:"check"`   // auto: compare every read with the checksums there are; or off
	Readers int    `mapstructure:"readers"` // reads in flight
}

// Compute says what computes.
type Compute struct {
	Backend string `mapstructure:"backend"` // a name, or auto
	Threads int    `mapstructure:"threads"` // or auto
}

// Generate says how text is generated.
type Generate struct {
	MaxTokens         int      `mapstructure:"max_tokens"`
	Temperature       float64  `mapstructure:"temperature"`
	TopK              int      `mapstructure:"top_k"`
	TopP              float64  `mapstructure:"top_p"`
	MinP              float64  `mapstructure:"min_p"`
	RepetitionPenalty float64  `mapstructure:"repetition_penalty"`
	Seed              uint64   `mapstructure:"seed"`
	Stop              []string `mapstructure:"stop"`
	IgnoreEOS         bool     `mapstructure:"ignore_eos"`
}

// Sample returns the sampling parameters among g.
func (g Generate) Sample() sample.Params {
	return sample.Params{
		Temperature: g.Temperature, TopK: g.TopK, TopP: g.TopP, MinP: g.MinP,
		RepetitionPenalty: g.RepetitionPenalty, Seed: g.Seed,
	}
}

// Set changes the setting that has a flag, from the text of its value. An error names the flag, and says what the value
// must be.
func (g *Generate) Set(flag, text string) error {
	s := find(func(s *setting) bool { return s.flag == flag && strings.HasPrefix(s.key, generate) })
	if s == nil {
		return fmt.Errorf("unknown setting %q", flag)
	}
	value, err := s.read(text)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	v := viper.New()
	v.Set(s.key, value)
	return v.UnmarshalKey(strings.TrimSuffix(generate, "."), g)
}

//go:embed *.yaml
var files embed.FS

// order lists the presets from small to large.
var order = []string{"demo", "ultra", "laptop", "desktop", "workstation", "server", "max", "auto"}

// Names returns the names of the presets, from small to large, auto last.
func Names() []string { return slices.Clone(order) }

// Text returns a preset's YAML. An unknown name is an error that matches ErrConfig and suggests the nearest.
func Text(name string) (string, error) {
	if !slices.Contains(order, name) {
		return "", fmt.Errorf("%w: unknown preset %q%s", ErrConfig, name, suggestOr(name, order))
	}
	data, err := files.ReadFile(name + ".yaml")
	return string(data), err
}

// Summary returns the line that describes a preset, or "".
func Summary(name string) string {
	text, err := Text(name)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimPrefix(line, "# ")
}

// Budget returns the memory that a preset gives the whole process, 0 for one that leaves it to the machine or says nothing.
func Budget(name string) (Size, error) {
	text, err := Text(name)
	if err != nil {
		return 0, err
	}
	values, err := parseFile("preset "+name, []byte(text))
	if err != nil {
		return 0, err
	}
	s, _ := values["memory.total"].(Size)
	return s, nil
}

// suggestOr is suggest, but lists all candidates when none is near.
func suggestOr(word string, candidates []string) string {
	if s := suggest(word, candidates); s != "" {
		return s
	}
	return ": there are " + strings.Join(candidates, ", ")
}

// AddFlags adds the flags --preset and --config, and those of the settings with the given flag names, in that order. It panics
// on a name that is no setting's.
func AddFlags(flags *pflag.FlagSet, names ...string) {
	flags.String("preset", "", "`NAME` of the preset to begin with (k3 presets lists them)")
	flags.String("config", "", "`FILE` of settings in YAML")
	for _, name := range names {
		s := find(func(s *setting) bool { return s.flag == name && name != "" })
		if s == nil {
			panic("presets: no setting has the flag " + name)
		}
		f := flags.VarPF(&flagValue{setting: s}, s.flag, "", s.usage)
		if s.boolean() {
			f.NoOptDefVal = "true"
		}
	}
}

// flagValue is a pflag.Value that checks what it is given.
type flagValue struct {
	setting *setting
	value   any
}

func (f *flagValue) String() string {
	if f.setting == nil {
		return ""
	}
	return f.setting.standard
}

func (f *flagValue) Type() string {
	if f.setting.boolean() {
		return "bool"
	}
	return "value"
}

func (f *flagValue) Set(text string) error {
	v, err := f.setting.read(text)
	if err != nil {
		return err
	}
	if f.setting.kind.list && f.value != nil {
		v = append(f.value.([]string), v.([]string)...)
	}
	f.value = v
	return nil
}

// Load decides the configuration from flags, to which AddFlags was applied and which were parsed, and environ, which is in
// the form of os.Environ. Errors match ErrConfig and say where the value at fault was given.
func Load(flags *pflag.FlagSet, environ []string) (Config, error) {
	env, sources, err := readEnviron(environ)
	if err != nil {
		return Config{}, err
	}
	v := viper.New()
	for _, s := range settings {
		if s.standard == "" {
			continue
		}
		value, err := s.read(s.standard)
		if err != nil {
			return Config{}, fmt.Errorf("default of %s: %w", s.key, err)
		}
		v.SetDefault(s.key, value)
	}
	var c Config
	if c.Preset = source(flags, sources, "preset"); c.Preset != "" {
		text, err := Text(c.Preset)
		if err != nil {
			return Config{}, err
		}
		values, err := parseFile("preset "+c.Preset, []byte(text))
		if err != nil {
			return Config{}, err
		}
		if err := merge(v, values); err != nil {
			return Config{}, err
		}
	}
	if c.File = source(flags, sources, "config"); c.File != "" {
		values, err := readFile(c.File)
		if err != nil {
			return Config{}, err
		}
		if err := merge(v, values); err != nil {
			return Config{}, err
		}
	}
	if err := merge(v, env); err != nil {
		return Config{}, err
	}
	for _, s := range settings {
		f := flags.Lookup(s.flag)
		if f == nil || !f.Changed {
			continue
		}
		if x, ok := f.Value.(*flagValue); ok { // and not a flag of the command's own with that name
			v.Set(s.key, x.value)
		}
	}
	if err := v.UnmarshalExact(&c); err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	given, err := Given(flags, environ, "trunk")
	c.TrunkIfThere = c.Trunk != "" && !given
	return c, err
}

// Given reports whether a flag, a variable or the configuration file has the setting with that key: neither a preset nor a default
// decides it. Errors are those of Load.
func Given(flags *pflag.FlagSet, environ []string, key string) (bool, error) {
	env, sources, err := readEnviron(environ)
	if err != nil {
		return false, err
	}
	values := map[string]any{}
	if file := source(flags, sources, "config"); file != "" {
		if values, err = readFile(file); err != nil {
			return false, err
		}
	}
	s := find(func(s *setting) bool { return s.key == key })
	f := flags.Lookup(s.flag)
	return env[key] != nil || values[key] != nil || f != nil && f.Changed, nil
}

// merge puts values, by dotted key, above what v has.
func merge(v *viper.Viper, values map[string]any) error {
	tree := map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		section, name, nested := strings.Cut(key, ".")
		if !nested {
			tree[key] = values[key]
			continue
		}
		sub, _ := tree[section].(map[string]any)
		if sub == nil {
			sub = map[string]any{}
			tree[section] = sub
		}
		sub[name] = values[key]
	}
	return v.MergeConfigMap(tree)
}

// source returns the value of --preset or --config, or of their variable.
func source(flags *pflag.FlagSet, env map[string]string, name string) string {
	if f := flags.Lookup(name); f != nil && f.Changed {
		return f.Value.String()
	}
	return env[name]
}

// readEnviron reads the K3_* variables: the settings among them, and preset and config. An empty variable counts as none.
func readEnviron(environ []string) (values map[string]any, sources map[string]string, err error) {
	const prefix = "K3_"
	names := []string{prefix + "PRESET", prefix + "CONFIG"}
	for _, s := range settings {
		names = append(names, s.env()...)
	}
	values, sources = map[string]any{}, map[string]string{}
	for _, entry := range environ {
		name, text, _ := strings.Cut(entry, "=")
		if runtime.GOOS == "windows" {
			name = strings.ToUpper(name)
		}
		if !strings.HasPrefix(name, prefix) || text == "" {
			continue
		}
		if name == prefix+"PRESET" || name == prefix+"CONFIG" {
			sources[strings.ToLower(strings.TrimPrefix(name, prefix))] = text
			continue
		}
		s := find(func(s *setting) bool { return slices.Contains(s.env(), name) })
		if s == nil {
			return nil, nil, fmt.Errorf("%w: environment: unknown variable %s%s", ErrConfig, name, suggest(name, names))
		}
		if _, twice := values[s.key]; twice {
			return nil, nil, fmt.Errorf("%w: environment: %s are both set", ErrConfig, strings.Join(s.env(), " and "))
		}
		if values[s.key], err = s.read(text); err != nil {
			return nil, nil, fmt.Errorf("%w: environment: %s: %w", ErrConfig, name, err)
		}
	}
	return values, sources, nil
}
