package kernel

import "testing"

func TestADriverThatIsNotWholeIsNotRegistered(t *testing.T) {
	whole := Driver{Name: "whole", Missing: func() string { return "a test's driver" }, New: func() Backend { return nil }}
	for what, edit := range map[string]func(*Driver){
		"no name":     func(d *Driver) { d.Name = "" },
		"called auto": func(d *Driver) { d.Name = "auto" },
		"no Missing":  func(d *Driver) { d.Missing = nil },
		"no New":      func(d *Driver) { d.New = nil },
	} {
		func() {
			d := whole
			edit(&d)
			defer func() {
				if recover() == nil {
					t.Errorf("%s: registered", what)
				}
			}()
			Register(d)
		}()
	}
}
