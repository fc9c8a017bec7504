package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/tokenizer"
)

// tokenizing is how a text becomes ids or pieces.
type tokenizing struct {
	tokenizer *tokenizer.Tokenizer
	special   bool // control tokens are read as such
	pieces    bool // the pieces instead of the ids
	chat      bool // lines are chat requests
	replace   bool // what is not UTF-8 is replaced
}

func tokenizeCommand() *cobra.Command {
	var t tokenizing
	var file string
	var lines bool
	cmd := &cobra.Command{
		Use:   "tokenize [flags] TEXT | - | --file FILE",
		Short: "Turn text into token ids",
		Long: "Turn text into token ids, comma separated. The text is the argument, byte for byte; - reads stdin. A model directory\n" +
			"that holds only the tokenizer's files is enough.",
		Example: "  k3 tokenize 'Hello, world'\n" +
			"  k3 tokenize --special '<|open|>user'\n" +
			`  echo '{"text":"Hello","special":false}' | k3 tokenize --jsonl`,
		RunE: func(cmd *cobra.Command, args []string) error {
			byFile := cmd.Flags().Changed("file")
			switch {
			case t.chat && !lines:
				return ui.Usagef("--chat reads requests, one a line: it goes with --jsonl")
			case t.chat && t.pieces:
				return ui.Usagef("--pieces splits ordinary text: it does not go with --chat")
			case t.pieces && t.special:
				return ui.Usagef("--pieces splits ordinary text: it does not go with --special")
			case lines && t.special:
				return ui.Usagef("with --jsonl, each line says whether it is special")
			case byFile && len(args) > 0:
				return ui.Usagef("one text at a time: an argument or --file")
			case lines && !byFile && (len(args) == 0 || len(args) == 1 && args[0] == "-"):
				args, file, byFile = nil, "-", true
			case lines && !byFile:
				return ui.Usagef("--jsonl reads stdin, or the file that --file names")
			case !byFile && len(args) != 1:
				return ui.Usagef("k3 tokenize takes one text, and got %d (a text with spaces needs quotes)", len(args))
			case !byFile && args[0] == "-":
				file, byFile = "-", true
			}
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if t.tokenizer, err = loadTokenizer(c.Model); err != nil {
				return err
			}
			announceDemo(cmd.ErrOrStderr(), c, cmd.Flags())
			out := bufio.NewWriter(cmd.OutOrStdout())
			switch {
			case lines:
				err = t.lines(cmd, file, out)
			case byFile:
				var text string
				if text, err = readInput(cmd, file); err == nil {
					err = t.text(file, text, out)
				}
				if errors.Is(err, tokenizer.ErrInvalidUTF8) {
					err = ui.Inputf("%w", err)
				}
			default:
				err = t.text("the text", args[0], out)
			}
			return errors.Join(err, out.Flush())
		},
	}
	addConfigFlags(cmd, "model")
	cmd.Flags().StringVar(&file, "file", "", "read the text from `FILE`, - is stdin")
	cmd.Flags().BoolVar(&t.special, "special", false, "read control tokens such as <|open|> as such")
	cmd.Flags().BoolVar(&t.pieces, "pieces", false, "print the pieces that the text is split into, as JSON strings")
	cmd.Flags().BoolVar(&lines, "jsonl", false,
		`read lines {"text":..., "special":bool}, write lines {"ids":[...]} or {"pieces":[...]}`)
	cmd.Flags().BoolVar(&t.chat, "chat", false,
		`with --jsonl: read chat requests as of OpenAI's API, write lines {"ids":[...], "segments":[...]}`)
	cmd.Flags().BoolVar(&t.replace, "replace-invalid", false, "replace what is not UTF-8 by U+FFFD instead of refusing it")
	return cmd
}

func (t *tokenizing) ids(text string, special bool) ([]int, error) {
	if special {
		return t.tokenizer.EncodeSpecial(text)
	}
	return t.tokenizer.Encode(text)
}

// text writes the ids or pieces of one text.
func (t *tokenizing) text(what, text string, out io.Writer) error {
	text, err := checkText(what, text, t.replace)
	if err != nil {
		return err
	}
	if t.pieces {
		pieces, err := t.tokenizer.Pieces(text)
		if err != nil {
			return err
		}
		for _, p := range pieces {
			if err := ui.WriteJSON(out, p); err != nil {
				return err
			}
		}
		return nil
	}
	ids, err := t.ids(text, t.special)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, formatIDs(ids))
	return err
}

// lines answers each line of a JSONL file.
func (t *tokenizing) lines(cmd *cobra.Command, path string, out *bufio.Writer) error {
	return eachLine(cmd, path, out, func(line []byte) error {
		line, err := t.valid(line)
		if err != nil {
			return err
		}
		if t.chat {
			return t.request(line, out)
		}
		var request struct {
			Text    *string `json:"text"`
			Special bool    `json:"special"`
		}
		if err := json.Unmarshal(line, &request); err != nil {
			return err
		}
		if request.Text == nil {
			return errors.New("text is missing")
		}
		if t.pieces {
			if request.Special {
				return errors.New("--pieces splits ordinary text: it does not go with special")
			}
			pieces, err := t.tokenizer.Pieces(*request.Text)
			if err != nil {
				return err
			}
			return ui.WriteJSON(out, struct {
				Pieces []string `json:"pieces"`
			}{append([]string{}, pieces...)})
		}
		ids, err := t.ids(*request.Text, request.Special)
		if err != nil {
			return err
		}
		return ui.WriteJSON(out, struct {
			IDs []int `json:"ids"`
		}{append([]int{}, ids...)})
	})
}

// request answers a chat request.
func (t *tokenizing) request(line []byte, out io.Writer) error {
	request, err := chat.ParseRequest(line)
	if err != nil {
		return err
	}
	segments, err := chat.Render(request)
	if err != nil {
		return err
	}
	ids, err := chat.Encode(t.tokenizer, segments)
	if err != nil {
		return err
	}
	return ui.WriteJSON(out, struct {
		IDs      []int          `json:"ids"`
		Segments []chat.Segment `json:"segments"`
	}{append([]int{}, ids...), append([]chat.Segment{}, segments...)})
}

// valid refuses a line of JSON with characters that encoding/json would replace silently, or replaces them if t.replace.
func (t *tokenizing) valid(line []byte) ([]byte, error) {
	text, err := checkText("the line", string(line), t.replace)
	if err != nil {
		return nil, err
	}
	if at := loneSurrogate(text); at >= 0 && !t.replace {
		return nil, fmt.Errorf("byte %d: half of a surrogate pair is no character (--replace-invalid replaces it)", at)
	}
	return []byte(text), nil
}

// loneSurrogate returns where in JSON text an escape stands that is half of a surrogate pair without the other, or -1.
func loneSurrogate(text string) int {
	unit := func(i int) (u int) {
		if i+6 > len(text) || text[i] != '\\' || text[i+1] != 'u' {
			return 0
		}
		if _, err := fmt.Sscanf(text[i+2:i+6], "%04x", &u); err != nil {
			return 0
		}
		return u
	}
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		switch u := unit(i); {
		case u >= 0xD800 && u < 0xDC00:
			if next := unit(i + 6); next < 0xDC00 || next > 0xDFFF {
				return i
			}
			i += 11
		case u >= 0xDC00 && u < 0xE000:
			return i
		default:
			i++ // the escaped character
		}
	}
	return -1
}

// eachLine gives the lines of the file at path, or of stdin for "-", to answer; blank ones are passed over. An error names the
// line. out is flushed whenever no further line has arrived yet, so that a program may converse.
func eachLine(cmd *cobra.Command, path string, out *bufio.Writer, answer func(line []byte) error) error {
	in, err := openInput(cmd, path)
	if err != nil {
		return err
	}
	defer in.Close()
	reader := bufio.NewReaderSize(in, 1<<16)
	for n := 1; ; n++ {
		line, err := reader.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if n == 1 {
			line = withoutMark(cmd, path, line)
		}
		if strings.TrimSpace(string(line)) != "" {
			if err := answer(line); err != nil {
				return ui.Inputf("%s:%d: %w", path, n, err)
			}
		}
		if reader.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
	}
}
