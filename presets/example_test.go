package presets_test

import (
	"fmt"
	"log"

	"github.com/k3infer/k3/presets"

	"github.com/spf13/pflag"
)

// A flag beats a variable, which beats a preset, which beats the default.
func ExampleLoad() {
	flags := pflag.NewFlagSet("example", pflag.ContinueOnError)
	presets.AddFlags(flags, "memory", "temperature", "seed")
	if err := flags.Parse([]string{"--preset", "laptop", "--seed", "3"}); err != nil {
		log.Fatal(err)
	}
	config, err := presets.Load(flags, []string{"K3_SEED=2", "K3_MEMORY=5GiB"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(config.Preset, config.Generate.Seed, config.Memory.Total)
	_, err = presets.Load(flags, []string{"K3_MEMROY=5GiB"})
	fmt.Println(err)
	// Output:
	// laptop 3 5GiB
	// configuration: environment: unknown variable K3_MEMROY, did you mean "K3_MEMORY"?
}
