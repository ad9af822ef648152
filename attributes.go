package tidemill

import (
	"fmt"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
)

// Extension attributes of events. What users filter on is an attribute.
const (
	AttrCausationID     = "causationid"     // id of the event that caused this one
	AttrCausationSource = "causationsource" // its source
	AttrCorrelationID   = "correlationid"   // id that a whole chain of causes shares
	AttrTraceParent     = "traceparent"     // W3C trace context
	AttrTraceState      = "tracestate"      // W3C trace state, an addition of tracing systems
	AttrAuthID          = "authid"          // identity of the person who acted, if a person did
	AttrPartitionKey    = "partitionkey"    // record key, if not the subject

	AttrRecipe       = "recipe"
	AttrRun          = "run"
	AttrAttempt      = "attempt"
	AttrOutcome      = "outcome" // state of the run after the attempt: retrying, succeeded, failed or cancelled
	AttrPool         = "pool"
	AttrModel        = "model"
	AttrModelVersion = "modelversion"
	AttrDataset      = "dataset"
	AttrBranch       = "branch"
	AttrCommit       = "commit"
	AttrTrigger      = "trigger"
	AttrScorer       = "scorer"
	AttrLabelField   = "labelfield" // of an answer: value that its label has too, if the scorer matches labels by a field
	AttrLabelGroup   = "labelgroup" // of an answer: group whose answers depend on each other
	AttrRollout      = "rollout"    // rollout whose new way a run was made
	AttrSchedule     = "schedule"
	AttrFigure       = "figure" // figure of a model that has drifted
	AttrHops         = "hops"   // number of replies in the chain of causes; bounds a loop of triggers
)

const (
	ownTypes   = "tidemill."
	ownSources = "/tidemill/"
)

// Reserved returns an error if an event from outside has a type or a source that only
// Tidemill itself may use.
func Reserved(typ, source string) error {
	if ReservedType(typ) {
		return fmt.Errorf("type %q is reserved: types that begin with %q are Tidemill's own; publish under a type of yours",
			typ, ownTypes)
	}
	if typ == TypeScheduleTick {
		return fmt.Errorf("type %q is reserved: only Tidemill's clock publishes ticks, because a tick can start a run of every key; publish under a type of yours", typ)
	}
	if strings.HasPrefix(source, ownSources) {
		return fmt.Errorf("source %q is reserved: sources that begin with %q are Tidemill's own; name the program that publishes",
			source, ownSources)
	}
	return nil
}

// ReservedType reports whether only Tidemill may publish the type.
func ReservedType(typ string) bool { return strings.HasPrefix(typ, ownTypes) }

// RecordKey is the key of the event's record: its partitionkey, else its
// subject. Empty means no key: the event may go to any partition.
func RecordKey(e event.Event) string {
	if e.Context == nil {
		return ""
	}
	if key, ok := e.Extensions()[AttrPartitionKey]; ok {
		if s := fmt.Sprint(key); s != "" {
			return s
		}
	}
	return e.Subject()
}
