package strictjson

// Value is one value of a parsed text.
type Value struct {
	Kind    Kind
	Text    string   // of a string, or a number as it is written; "true" or "false"
	Members []Member // of an object, in order
	Items   []Value  // of a list
}

// Member is one entry of an object.
type Member struct {
	Key   string
	Value Value
}

// Get finds the member of an object with exactly this key.
func (v Value) Get(key string) (Value, bool) {
	for _, m := range v.Members {
		if m.Key == key {
			return m.Value, true
		}
	}
	return Value{}, false
}

// Parse reads a whole text, refusing an object that has one key twice.
func Parse(data []byte) (Value, error) {
	r := New(data)
	v := r.value()
	r.End()
	return v, r.Err()
}

func (r *Reader) value() Value {
	v := Value{Kind: r.Kind()}
	switch v.Kind {
	case Object:
		seen := map[string]bool{}
		r.Object(func(k []byte) {
			key := string(k)
			if seen[key] {
				r.Fail("the key %q a second time", clip(k))
				return
			}
			seen[key] = true
			v.Members = append(v.Members, Member{key, r.value()})
		})
	case Array:
		r.Array(func() { v.Items = append(v.Items, r.value()) })
	case String:
		v.Text = string(r.Str())
	case Number:
		v.Text = string(r.Num())
	case Bool:
		v.Text = "false"
		if r.Bool() {
			v.Text = "true"
		}
	case Null:
		r.Null()
	default:
		r.unexpected("a value")
	}
	return v
}
