package presets

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

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
		return nil, fmt.Errorf("%w: %s: %s", ErrConfig, path, strings.TrimPrefix(err.Error(), "yaml: "))
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
			return p.errorf(value, "%s: must be a section with %s", key, strings.Join(under(key), ", "))
		}
		return p.section(key+".", value)
	}
	s := find(func(s *setting) bool { return s.key == key })
	if s == nil || name.Kind != yaml.ScalarNode {
		return p.errorf(name, "unknown key %q%s", key, suggest(key, keys()))
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
	v, err := s.read(node.Value)
	if err != nil {
		return nil, p.errorf(node, "%s: %s", s.key, err)
	}
	return v, nil
}

// keys returns all keys.
func keys() []string {
	var all []string
	for _, s := range settings {
		all = append(all, s.key)
	}
	return all
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
