package main

import (
	"encoding/json"
	"reflect"
	"regexp"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/k3infer/k3/core/hub"
	"github.com/k3infer/k3/core/kernel/bench"
	"github.com/k3infer/k3/core/verify"
)

func TestTheHelpNamesEveryValue(t *testing.T) {
	name := regexp.MustCompile(`^[A-Z]+(/[A-Z]+)?$`)
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if value := placeholder(f); f.Value.Type() != "bool" && !name.MatchString(value) {
				t.Errorf("%s --%s: the help calls the value %q", cmd.CommandPath(), f.Name, value)
			}
		})
		for _, c := range cmd.Commands() {
			check(c)
		}
	}
	check(rootCommand())
}

func TestJSONHasNamesOfOneKind(t *testing.T) {
	name := regexp.MustCompile(`^[a-z0-9_]+(,omitempty)?$`)
	seen := map[reflect.Type]bool{}
	var check func(of reflect.Type)
	check = func(of reflect.Type) {
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			check(of.Elem())
			return
		}
		if of.Kind() != reflect.Struct || seen[of] || of.Implements(reflect.TypeFor[json.Marshaler]()) {
			return
		}
		seen[of] = true
		for i := range of.NumField() {
			f := of.Field(i)
			tag := f.Tag.Get("json")
			if !f.IsExported() && !f.Anonymous || tag == "-" {
				continue
			}
			if !name.MatchString(tag) && !(f.Anonymous && tag == "") {
				t.Errorf("%v.%s is called %q", of, f.Name, tag)
			}
			check(f.Type)
		}
	}
	for _, v := range []any{report{}, planReport{}, diagnosis{}, inspection{}, tensorReport{}, expertsReport{}, roundtripReport{}, simulation{},
		benchResult{}, diskResult{}, conformanceResult{}, sessionExtra{}, hub.Plan{}, verify.Report{}, bench.Result{}} {
		check(reflect.TypeOf(v))
	}
}
