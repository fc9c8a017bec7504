package disk

import (
	"errors"
	"fmt"
	"os"
)

// ErrLocked says that another process, or another part of this one, holds a lock.
var ErrLocked = errors.New("in use by another process")

// Lock makes a file at path and holds it until the function it returns is called, which removes the file, or until this process
// ends. Meanwhile Lock of the same path fails with an error that matches ErrLocked. On a file system without locks it
// never does.
func Lock(path string) (unlock func(), err error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, fmt.Errorf("disk: lock: %w", err)
		}
		ok, err := lock(f)
		if errors.Is(err, errors.ErrUnsupported) {
			ok, err = true, nil // nothing better can be had
		}
		if err != nil || !ok {
			f.Close()
			if err == nil {
				return nil, fmt.Errorf("disk: %s is %w", path, ErrLocked)
			}
			return nil, fmt.Errorf("disk: lock %s: %w", path, err)
		}
		// Its holder may have removed the file between opening and locking: what is held must be what the next one will find.
		if stands(f, path) {
			return func() { release(f, path) }, nil
		}
		f.Close()
	}
}
