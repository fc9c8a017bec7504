//go:build !unix && !windows

package disk

import "errors"

func allocated(*dirFile) (int64, error) { return 0, errors.ErrUnsupported }
