//go:build !linux && !darwin && !windows

package disk

func openDirect(string) (DirectReader, error) { return nil, ErrNoDirect }
