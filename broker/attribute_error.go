package broker

import "strings"

// AttributeError says which attribute of an event is at fault. Whoever answers
// a publisher asks for the name alone, with [errors.As] and an interface that
// has the method Attribute.
type AttributeError struct {
	Name string // as it was met, so it may be hostile
	Err  error
}

func attributeError(name string, err error) error { return &AttributeError{Name: name, Err: err} }

// Error shows a name that no attribute can have quoted and cut.
func (e *AttributeError) Error() string {
	name := e.Name
	if nameFault(name) != nil {
		name = clip(name)
	}
	return "attribute " + name + ": " + e.Err.Error()
}

// Unwrap is what is wrong with it.
func (e *AttributeError) Unwrap() error { return e.Err }

// Attribute is the name; of one that no attribute can have, the beginning.
func (e *AttributeError) Attribute() string {
	if nameFault(e.Name) == nil || len(e.Name) <= nameOfNoEventShown {
		return strings.ToValidUTF8(e.Name, "\uFFFD")
	}
	return strings.ToValidUTF8(e.Name[:nameOfNoEventShown], "\uFFFD") + "…"
}
