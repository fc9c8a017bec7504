package experts

import (
	"context"

	"github.com/k3infer/k3/core/kernel"
)

// Expert is the three matrices of one routed expert, lent to the pass until Release.
type Expert struct {
	ID         int         // number within its layer
	W1, W3, W2 kernel.Tile // gate and up (intermediate x latent), down (latent x intermediate)

	release func()
}

// Release gives the expert back. Its bytes may change from then on.
func (e Expert) Release() {
	if e.release != nil {
		e.release()
	}
}

// Store brings routed experts into memory.
type Store interface {
	// Request asks for the given distinct experts of a layer, all at once, in routing order.
	Request(ctx context.Context, layer int, ids []int) (Batch, error)
	// Close frees the store's memory. No batch may be open.
	Close() error
}

// Batch is the experts of one request.
type Batch interface {
	// Next returns the expert that arrived next, in whatever order they arrive, each exactly once. One expert may be held at
	// a time. After an error, which names the file, the offset and the tensor, or is the context's, only Close is left.
	Next() (Expert, error)
	// Close ends the request, wherever it is.
	Close()
}
