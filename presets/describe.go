package presets

// Description is what there is to know about a key of the configuration, for docs/configuration.md.
type Description struct {
	Key       string   // as in a configuration file, with dots between section and name
	Flag      string   // without dashes, "" when there is none
	Variables []string // of the environment
	Usage     string   // as in the flag's help, "" when there is no flag
	Default   string   // "" for none
	Want      string   // what a value must be, to follow "must be"
}

// Describe returns the descriptions of all keys, in the order of the help.
func Describe() []Description {
	var all []Description
	for _, s := range settings {
		all = append(all, Description{s.key, s.flag, s.env(), s.usage, s.standard, s.kind.want})
	}
	return all
}
