// Package functions turns a Go function into one that events can call. Tidemill posts an event to
// it over HTTP, as Knative would, and publishes the events that it returns. Tidemill's own
// functions work in the same way; examples/function is an example to begin with.
//
//	func main() {
//		err := functions.Serve(context.Background(), func(ctx context.Context, e event.Event) ([]event.Event, error) {
//			…
//		})
//		…
//	}
//
// An event may come more than once, so a function must be idempotent by the event's source and id.
// The dispatcher sets a reply's id, so that the same event always has the same replies.
package functions
