package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/k3infer/k3/core/verify"
)

// docs/schemas has a JSON Schema for what the commands write as JSON, made from the types that are written; real output is valid by it.
// With UPDATE=1 in the environment the files are written anew.
func TestWhatIsWrittenAsJSONIsValidByItsSchema(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	if _, err := k3(t, "", "fabricate", "-q", dir); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		value any
		args  []string
	}{
		{"report", report{}, []string{"run", "-q", "--max-tokens", "2", "--print-ids", "--report", filepath.Join(dir, "../report"), "Hello"}},
		{"plan", planReport{}, []string{"plan", "--no-measure", "--json"}},
		{"doctor", diagnosis{}, []string{"doctor", "--json", "--time", "1ms", "--dir", filepath.Join(dir, "nowhere")}}, // measures no disk
		{"inspect", inspection{}, []string{"inspect", "--json", dir}},
		{"verify", struct {
			verify.Report
			Command string  `json:"command,omitempty"`
			Seconds float64 `json:"seconds"`
		}{}, []string{"verify", "-q", "--json", dir}},
		{"bench-disk", diskResult{}, []string{"bench", "disk", "--readers", "1", "--block", "64KiB", "--time", "1ms", "--json", dir}},
	} {
		t.Run(c.name, func(t *testing.T) {
			schema := schemaOf(reflect.TypeOf(c.value))
			schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
			schema["title"] = "k3 " + c.name
			want, err := json.MarshalIndent(schema, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, '\n')
			path := filepath.Join("../../docs/schemas", c.name+".json")
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(path, want, 0o666); err != nil {
					t.Fatal(err)
				}
			}
			have, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(bytes.ReplaceAll(have, []byte("\r\n"), []byte("\n")), want) {
				t.Fatalf("%s is out of date: UPDATE=1 go test ./cmd/k3 -run Schema writes it", path)
			}
			compiled, err := jsonschema.NewCompiler().Compile(path)
			if err != nil {
				t.Fatal(err)
			}
			text, err := k3(t, "", c.args...)
			if err != nil {
				t.Fatal(err)
			}
			if c.name == "report" {
				data, err := os.ReadFile(filepath.Join(dir, "../report"))
				if err != nil {
					t.Fatal(err)
				}
				text = string(data)
			}
			value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if err := compiled.Validate(value); err != nil {
				t.Errorf("%v\n%.500s", err, text)
			}
		})
	}
}

// schemaOf is the schema of what encoding/json writes of a type.
func schemaOf(of reflect.Type) map[string]any {
	if of.Implements(reflect.TypeFor[json.Marshaler]()) {
		return map[string]any{} // it decides itself
	}
	switch of.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Pointer:
		return map[string]any{"anyOf": []any{map[string]any{"type": "null"}, schemaOf(of.Elem())}}
	case reflect.Slice:
		return map[string]any{"type": []string{"array", "null"}, "items": schemaOf(of.Elem())}
	case reflect.Array:
		return map[string]any{"type": "array", "items": schemaOf(of.Elem())}
	case reflect.Map:
		return map[string]any{"type": []string{"object", "null"}, "additionalProperties": schemaOf(of.Elem())}
	case reflect.Interface:
		return map[string]any{}
	case reflect.Struct:
		properties, required := map[string]any{}, []string{}
		addFields(of, properties, &required)
		return map[string]any{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
	}
	return map[string]any{"type": "integer"}
}

func addFields(of reflect.Type, properties map[string]any, required *[]string) {
	for i := range of.NumField() {
		f := of.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case tag == "-", !f.IsExported() && !f.Anonymous:
		case f.Anonymous && tag == "":
			addFields(f.Type, properties, required)
		default:
			properties[name] = schemaOf(f.Type)
			if options != "omitempty" {
				*required = append(*required, name)
			}
		}
	}
}
