package broker

import "tidemill.dev/broker/internal/wire"

// Header is a header of a Kafka record.
type Header = wire.Header

// Attribute is one extension attribute in CloudEvents' canonical text form:
// whatever its type, it travels as text.
type Attribute struct {
	Name  string // a-z and 0-9
	Value string
}

// View is one CloudEvent 1.0, flat. The hot path reads and publishes views;
// [View.Event] and [FromEvent] lead to and from sdk-go's event at the edges.
//
// A view that was read points into the bytes it was read from and is valid as
// long as they are: [View.Clone] what must live longer. An empty string is an
// absent attribute; there is no field for specversion, as it is always 1.0.
type View struct {
	ID              string
	Source          string
	Type            string
	Subject         string
	DataContentType string
	DataSchema      string
	Time            string // RFC 3339, as its publisher wrote it

	Extensions []Attribute
	Data       []byte // nil is no data

	// Key is the record's key. Where it is nil a published event is keyed by
	// its partitionkey, else by its subject.
	Key []byte
	// Foreign are headers that are no attributes. They are carried along.
	Foreign []Header
}

// Attribute looks an attribute up by its name, the core ones included.
func (v *View) Attribute(name string) (string, bool) {
	if name == attrSpecVersion {
		return specVersion, true
	}
	if field := v.core(name); field != nil {
		return *field, *field != ""
	}
	if i := v.extension(name); i >= 0 {
		return v.Extensions[i].Value, true
	}
	return "", false
}

// Set sets an attribute by its name, the core ones included; an empty value
// unsets those. The only specversion is 1.0. It checks the name, and [View.Validate]
// the value.
func (v *View) Set(name, value string) error {
	if name == attrSpecVersion {
		return versionFault(value)
	}
	return v.set(name, value)
}

// core is the field that holds a core attribute, nil if the name is no core
// attribute's. It is the one place that ties names to fields.
func (v *View) core(name string) *string {
	switch name {
	case "id":
		return &v.ID
	case "source":
		return &v.Source
	case "type":
		return &v.Type
	case "subject":
		return &v.Subject
	case "time":
		return &v.Time
	case "dataschema":
		return &v.DataSchema
	case "datacontenttype":
		return &v.DataContentType
	}
	return nil
}

// extension is the index of an extension, -1 if there is none of that name. A
// view holds a handful, which a scan beats a map at.
func (v *View) extension(name string) int {
	for i := range v.Extensions {
		if v.Extensions[i].Name == name {
			return i
		}
	}
	return -1
}

// setExtension replaces, so that of two headers of one name the last counts, as
// it does for sdk-go and for Kafka's own Headers.lastHeader.
func (v *View) setExtension(name, value string) {
	if i := v.extension(name); i >= 0 {
		v.Extensions[i].Value = value
		return
	}
	v.Extensions = append(v.Extensions, Attribute{name, value})
}

// reset empties the view and keeps its slices for the next event.
func (v *View) reset() {
	*v = View{Extensions: v.Extensions[:0], Foreign: v.Foreign[:0]}
}

// recordKey is the key to publish under: the view's own, else its partitionkey,
// else its subject; nil where it has none of them.
func (v *View) recordKey() []byte {
	if v.Key != nil {
		return v.Key
	}
	if i := v.extension(attrPartitionKey); i >= 0 && v.Extensions[i].Value != "" {
		return raw(v.Extensions[i].Value)
	}
	if v.Subject != "" {
		return raw(v.Subject)
	}
	return nil
}
