package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/k3infer/k3/presets"
)

// docs/configuration.md has every setting and every flag as the program has them. With UPDATE=1 in the environment its tables are
// written anew.
func TestTheConfigurationPageIsThatOfTheProgram(t *testing.T) {
	const (
		path = "../../docs/configuration.md"
		mark = "<!-- generated -->\n"
	)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := strings.ReplaceAll(string(data), "\r\n", "\n")
	text, _, found := strings.Cut(page, mark)
	if !found {
		t.Fatalf("%s has no line %q", path, mark)
	}
	want := text + mark + configurationTables()
	if page == want {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Fatalf("%s is out of date: UPDATE=1 go test ./cmd/k3 -run ConfigurationPage writes it", path)
	}
	if err := os.WriteFile(path, []byte(want), 0o666); err != nil {
		t.Fatal(err)
	}
}

// configurationTables are the tables of docs/configuration.md: the settings, and the flags of each command.
func configurationTables() string {
	var out strings.Builder
	taken := map[string][]string{} // by flag, the commands that take it as a setting
	var list strings.Builder
	eachCommand(rootCommand(), func(cmd *cobra.Command) {
		name := cmd.CommandPath()
		configures := cmd.Flags().Lookup("config") != nil
		var rows []string
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if configures && slices.ContainsFunc(presets.Describe(), func(d presets.Description) bool { return d.Flag == f.Name }) {
				taken[f.Name] = append(taken[f.Name], strings.TrimPrefix(name, "k3 "))
				return
			}
			if f.Hidden || f.Name == "help" || f.Name == "preset" || f.Name == "config" {
				return
			}
			value, usage := pflag.UnquoteUsage(f)
			flag := "--" + f.Name
			if f.Value.Type() != "bool" {
				flag += " " + value
			}
			if f.Shorthand != "" {
				flag = "-" + f.Shorthand + ", " + flag
			}
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", flag, quoted(f.DefValue), cell(usage)))
		})
		if configures {
			rows = append([]string{"| `--preset NAME`, `--config FILE` | | see above |\n"}, rows...)
		}
		if len(rows) > 0 {
			fmt.Fprintf(&list, "\n### %s\n\n| flag | default | meaning |\n|---|---|---|\n%s", name, strings.Join(rows, ""))
		}
	})
	fmt.Fprint(&out, "\n## Settings\n\n| key | flag | variable | default | a value is | meaning | flag of |\n|---|---|---|---|---|---|---|\n")
	for _, d := range presets.Describe() {
		flag := "none"
		if d.Flag != "" {
			flag = "`--" + d.Flag + "`"
		}
		usage := cmp.Or(strings.ReplaceAll(d.Usage, "`", ""), settingsWithoutFlag[d.Key])
		fmt.Fprintf(&out, "| `%s` | %s | `%s` | %s | %s | %s | %s |\n", d.Key, flag, strings.Join(d.Variables, "`, `"), quoted(d.Default),
			cell(d.Want), cell(usage), strings.Join(taken[d.Flag], ", "))
	}
	fmt.Fprint(&out, "\n## Flags that are no settings\n\nThey exist on the command line alone.\n", list.String())
	return out.String()
}

// settingsWithoutFlag says what the settings mean that have no flag, and so no help.
var settingsWithoutFlag = map[string]string{
	"io.direct":  "auto: weights are read around the page cache where the system can; off: everything goes through the page cache",
	"io.check":   "auto: every read is compared with the checksums that a model or pack has; off: it is not",
	"io.readers": "reads from the disk that are in flight at once",
}

func TestEverySettingHasAMeaning(t *testing.T) {
	for _, d := range presets.Describe() {
		if d.Usage == "" && settingsWithoutFlag[d.Key] == "" {
			t.Errorf("%s: nothing says what it means", d.Key)
		}
	}
}

// eachCommand calls use for cmd and all commands below it.
func eachCommand(cmd *cobra.Command, use func(cmd *cobra.Command)) {
	use(cmd)
	for _, c := range cmd.Commands() {
		eachCommand(c, use)
	}
}

// quoted is a default as code, nothing for none.
func quoted(text string) string {
	if text = strings.Trim(text, "[]"); text == "" {
		return ""
	}
	return "`" + text + "`"
}

// cell is text that does not end a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
