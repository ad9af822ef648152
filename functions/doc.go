// Package functions turns a Go function into one that events can wake: Tidemill
// posts an event to it over HTTP, as Knative would, and publishes what it
// returns. The functions of Tidemill itself are such functions, and so may be
// yours; examples/function is one to begin with.
//
//	func main() {
//		err := functions.Serve(context.Background(), func(ctx context.Context, e event.Event) ([]event.Event, error) {
//			…
//		})
//		…
//	}
//
// An event may come more than once, so a function must be idempotent by its
// source and id. A reply's id is given by whoever publishes it, so that the
// same event always has the same replies.
package functions
