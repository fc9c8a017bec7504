package checkpoint

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

var (
	// ErrConfig says that config.json or generation_config.json is damaged, or describes a model this engine does not run.
	ErrConfig = errors.New("unusable config")
	// ErrFormat says that a checkpoint's files are damaged, incomplete, or do not fit its config.json.
	ErrFormat = errors.New("damaged or incomplete checkpoint")
)

// Partial says that shards are missing, as after k3 download --layers. It matches ErrFormat.
type Partial struct {
	Files      string   // where the others are: Files.Name
	Layers, Of int      // layers of which every shard is there, by the index file; of how many; 0 without one
	Missing    []string // shards
}

func (p *Partial) Error() string {
	const most = 3
	text := strings.Join(p.Missing[:min(most, len(p.Missing))], " is missing; ") + " is missing"
	if n := len(p.Missing) - most; n > 0 {
		text += fmt.Sprintf("; and %d more shards", n)
	}
	if p.Of > 0 {
		text = fmt.Sprintf("%d of %d layers are here: %s", p.Layers, p.Of, text)
	}
	return text
}

// Is says that target is ErrFormat.
func (p *Partial) Is(target error) bool { return target == ErrFormat }

// problems collects what is wrong, so that one run tells everything.
type problems struct {
	where string
	list  []error
}

func (p *problems) add(err error) { p.list = append(p.list, err) }

// err is nil without problems.
func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	return p
}

func (p *problems) Error() string {
	const most = 500 // more than the released checkpoint has shards, or config.json fields
	texts := []string{}
	for _, err := range p.list[:min(most, len(p.list))] {
		texts = append(texts, err.Error())
	}
	if n := len(p.list) - most; n > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", n))
	}
	return p.where + ": " + strings.Join(texts, "; ")
}

func (p *problems) Unwrap() []error { return p.list }

// some lists the first few of many things of one sort.
type some struct {
	first []string
	n     int
}

const listed = 20

func (s *some) add(text func() string) {
	if s.n < listed {
		s.first = append(s.first, text())
	}
	s.n++
}

func (s *some) String() string {
	text := strings.Join(s.first, ", ")
	if s.n > len(s.first) {
		text += fmt.Sprintf(" and %d more", s.n-len(s.first))
	}
	return text
}

// short is the first and how many there are besides.
func (s *some) short() string {
	if s.n == 1 {
		return s.first[0]
	}
	return fmt.Sprintf("%s and %d more", s.first[0], s.n-1)
}

const shown = 200 // bytes of a text from a file that a message repeats

// show makes a text from a file fit for a line of a message.
func show(s string) string {
	if len(s) <= shown && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	return quote(s)
}

func quote(s string) string {
	if len(s) > shown {
		return strconv.Quote(s[:shown]) + "..."
	}
	return strconv.Quote(s)
}
