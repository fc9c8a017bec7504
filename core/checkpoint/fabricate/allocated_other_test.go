//go:build !unix

package fabricate_test

import "os"

// allocated would be how many bytes of the disk a file takes.
func allocated(os.FileInfo) int64 { return 0 }
