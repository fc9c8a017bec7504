package presets

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// maxFile is far beyond any configuration.
const maxFile = 1 << 20

// readFile reads the settings of a configuration file.
func readFile(path string) (map[string]any, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%w: %s: more than %d bytes, not a configuration", ErrConfig, path, maxFile)
	}
	return parseFile(path, data)
}

// parseFile reads YAML into typed values by key. Everything it does not understand is an error that names file and line: an
// unknown key, a key given twice, a value of the wrong type or out of range.
func parseFile(path string, data []byte) (map[string]any, error) {
	p := parser{path: path, values: map[string]any{}}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, more yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		return p.values, nil
	}
	if err == nil && decoder.Decode(&more) != io.EOF {
		err = fmt.Errorf("more than one document")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrConfig, syntaxError(path, data, err))
	}
	for _, node := range document.Content {
		if node.Tag == "!!null" {
			continue // comments only
		}
		if err := p.section("", node); err != nil {
			return nil, err
		}
	}
	return p.values, nil
}

// yamlError is how the YAML package says what is wrong: without a line if that is the first.
var yamlError = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// uncounted are the errors whose line the YAML package counts from 0.
var uncounted = regexp.MustCompile(`^did not find expected (node content|'-' indicator|key|',' or)`)

// syntaxError says what is wrong with YAML in the words of the package, with the line, and what to do about it where that is
// known.
func syntaxError(path string, data []byte, err error) string {
	parts := yamlError.FindStringSubmatch(err.Error())
	line, what := 1, parts[2]
	if parts[1] != "" {
		line, _ = strconv.Atoi(parts[1]) // digits, and few
		if uncounted.MatchString(what) {
			line++
		}
	}
	text := ""
	if lines := bytes.Split(data, []byte("\n")); line <= len(lines) {
		text = string(lines[line-1])
	}
	switch {
	case strings.Contains(what, "escape character"), strings.Contains(what, "hexdecimal"):
		what += backslashes
	case strings.HasPrefix(strings.TrimLeft(text, " "), "\t"):
		what += ": indent with spaces, YAML takes no tabs"
	}
	return fmt.Sprintf("%s:%d: %s", path, line, what)
}

// backslashes is what to know about a Windows path in double quotes.
const backslashes = `: in double quotes \ begins an escape; write a Windows path in single quotes, 'C:\models'`

type parser struct {
	path   string
	values map[string]any
}

func (p *parser) errorf(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%w: %s:%d: %s", ErrConfig, p.path, n.Line, fmt.Sprintf(format, args...))
}

// section reads a mapping whose keys continue prefix.
func (p *parser) section(prefix string, node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return p.errorf(node, "must be keys and values, such as model: ~/k3model")
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if err := p.entry(prefix, node.Content[i], node.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) entry(prefix string, name, value *yaml.Node) error {
	key := prefix + name.Value
	if find(func(s *setting) bool { return strings.HasPrefix(s.key, key+".") }) != nil {
		if value.Kind != yaml.MappingNode {
			names := under(key)
			like := ""
			if value.Kind == yaml.ScalarNode && value.Value != "" {
				like = fmt.Sprintf(", such as %s: {%s: %s}", key, names[0], value.Value)
			}
			return p.errorf(value, "%s: must be a section with %s%s", key, strings.Join(names, ", "), like)
		}
		return p.section(key+".", value)
	}
	s := find(func(s *setting) bool { return s.key == key })
	if s == nil || name.Kind != yaml.ScalarNode {
		return p.errorf(name, "unknown key %q%s", key, suggestKey(key, value))
	}
	if _, twice := p.values[key]; twice {
		return p.errorf(name, "%s: given twice", key)
	}
	v, err := p.value(s, value)
	if err != nil {
		return err
	}
	p.values[key] = v
	return nil
}

func (p *parser) value(s *setting, node *yaml.Node) (any, error) {
	if s.kind.list && node.Kind == yaml.SequenceNode {
		all := []string{}
		for _, n := range node.Content {
			v, err := p.scalar(s, n)
			if err != nil {
				return nil, err
			}
			all = append(all, v.([]string)...)
		}
		return all, nil
	}
	return p.scalar(s, node)
}

func (p *parser) scalar(s *setting, node *yaml.Node) (any, error) {
	if node.Kind != yaml.ScalarNode || !slices.Contains(s.kind.tags, node.ShortTag()) {
		what := map[string]string{"!!null": "nothing", "!!str": fmt.Sprintf("the text %q", node.Value)}[node.ShortTag()]
		switch {
		case node.Kind == yaml.AliasNode:
			what = "an alias"
		case node.Kind != yaml.ScalarNode:
			what = "a list or section"
		case what == "":
			what = node.Value
		}
		return nil, p.errorf(node, "%s: %s: must be %s", s.key, what, s.kind.want)
	}
	if s.kind.path && node.Style&yaml.DoubleQuotedStyle != 0 && strings.ContainsFunc(node.Value, unicode.IsControl) {
		return nil, p.errorf(node, "%s: %q%s", s.key, node.Value, backslashes)
	}
	v, err := s.read(node.Value)
	if err != nil {
		return nil, p.errorf(node, "%s: %s", s.key, err)
	}
	return v, nil
}

// suggestKey is suggest for an unknown key with that value: a section for a section, and a setting, by its key or the name
// of its flag, for a value.
func suggestKey(key string, value *yaml.Node) string {
	var sections, all []string
	for _, s := range settings {
		if section, _, nested := strings.Cut(s.key, "."); nested {
			sections = append(sections, section)
		}
		if s.flag != "" && fold(s.flag) == fold(key) {
			key = s.key
		}
		all = append(all, s.key)
	}
	if value.Kind == yaml.MappingNode {
		all = sections
	}
	return suggest(key, all)
}

// under returns the last parts of the keys of a section.
func under(section string) []string {
	var names []string
	for _, s := range settings {
		if rest, ok := strings.CutPrefix(s.key, section+"."); ok {
			names = append(names, rest)
		}
	}
	return names
}
