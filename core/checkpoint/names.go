package checkpoint

import (
	"bytes"
	"strconv"
	"strings"
)

// prefix begins the name of every tensor of the text model in the released checkpoint, whose names are used
// everywhere in this program, in packs and fingerprints too. Checkpoints that were published anew with the text model
// alone leave it out; Open and Examine put it back. So it is with the type of the routed experts' scales, which are
// U8 or, by another name for the same bytes, F8_E8M0.
const prefix = "language_model."

const (
	// Embedding is the name of the matrix with a row for each token id.
	Embedding = prefix + embedding
	// Head is the name of the matrix that gives the logits.
	Head = prefix + head

	model     = "model."
	layerPart = model + "layers."
	embedding = model + "embed_tokens.weight"
	head      = "lm_head.weight"
)

// TextName is the full name of a tensor of the text model: "model.norm.weight" is one without what all of them begin
// with.
func TextName(name string) string { return prefix + name }

// Name is what the name of a tensor of the text model says.
type Name struct {
	Layer  int    // -1 outside the layers
	Expert int    // routed expert, -1 for the trunk
	Part   string // what follows the layer and the expert: "w1.weight_scale", "self_attn.A_log", "model.norm.weight"
}

// ParseName reads the name of a tensor, as released or without the beginning that a text model alone can do without. It
// reports whether that is a tensor of the text model.
func ParseName(name string) (Name, bool) {
	n := Name{-1, -1, name}
	if rest, ok := strings.CutPrefix(name, prefix); ok {
		n.Part = rest
	} else if !bare([]byte(name)) {
		return n, false
	}
	cut := func(before string, number *int) bool {
		rest, ok := strings.CutPrefix(n.Part, before)
		digits, rest, whole := strings.Cut(rest, ".")
		v, err := strconv.ParseUint(digits, 10, 31)
		if !ok || !whole || err != nil {
			return false
		}
		*number, n.Part = int(v), rest
		return true
	}
	if cut(layerPart, &n.Layer) {
		cut(expertPart, &n.Expert)
	}
	return n, true
}

// scale is what the names of the routed experts' scales end with.
const scale = ".weight_scale"

const expertPart = "block_sparse_moe.experts."

// bare reports whether a name is one of the text model, without prefix.
func bare(name []byte) bool {
	return bytes.HasPrefix(name, []byte(model)) || bytes.HasPrefix(name, []byte("lm_head."))
}

// form is how a checkpoint names the tensors of its text model.
type form uint8

const (
	unknown    form = iota // none of them has been seen
	prefixed               // with prefix
	unprefixed             // without
)

// canonical gives the released name of a tensor of a checkpoint. It reports false if other tensors of the text model
// are named in the other form: which one is meant where both are there nobody can tell.
func (n *names) canonical(name []byte) ([]byte, bool) {
	f := prefixed
	switch {
	case bytes.HasPrefix(name, []byte(prefix)):
	case bare(name):
		f = unprefixed
		n.full = append(append(n.full[:0], prefix...), name...)
		name = n.full
	default:
		return name, true
	}
	if n.form == unknown {
		n.form = f
	}
	return name, n.form == f
}

// differs says what is wrong with a name that is not of the form of the others.
func (n *names) differs() string {
	if n.form == unprefixed {
		return "it begins with " + prefix + ", which the names before it do not"
	}
	return "it does not begin with " + prefix + ", as the names before it do"
}
