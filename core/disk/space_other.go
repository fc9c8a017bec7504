//go:build !linux && !darwin && !windows

package disk

import "errors"

func freeSpace(string) (int64, error) { return 0, errors.ErrUnsupported }
