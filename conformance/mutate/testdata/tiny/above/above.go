// Package above imports tiny.
package above

import "tiny"

// Four is twice two.
func Four() int { return 2 * tiny.Two() }
