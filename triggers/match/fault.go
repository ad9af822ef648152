package match

// faultKind is which of the language's errors something is.
type faultKind uint8

const (
	mathFault faultKind = iota + 1
	castFault
	missingAttribute
	functionFault
)

// fault is an error of an evaluation. It is made when the expression is
// compiled, for events that lack an attribute are many.
type fault struct {
	kind faultKind
	text string
}

func (f *fault) Error() string { return f.text }

func missing(attribute string) *fault {
	return &fault{missingAttribute, "the event has no attribute " + attribute}
}

func noCast(of string, to kind) *fault {
	wanted := "true or false"
	if to == integer {
		wanted = "an integer"
	}
	return &fault{castFault, of + " is not " + wanted}
}
