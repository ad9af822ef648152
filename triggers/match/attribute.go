package match

import "tidemill.dev/broker"

// attribute gets an attribute from an event. Which one it is was decided when
// the filter was compiled: broker.View would look at the name at each event.
type attribute func(*broker.View) (text string, there bool)

func attributeOf(name string) attribute {
	switch name {
	case "id":
		return func(v *broker.View) (string, bool) { return v.ID, v.ID != "" }
	case "source":
		return func(v *broker.View) (string, bool) { return v.Source, v.Source != "" }
	case "type":
		return func(v *broker.View) (string, bool) { return v.Type, v.Type != "" }
	case "subject":
		return func(v *broker.View) (string, bool) { return v.Subject, v.Subject != "" }
	case "time":
		return func(v *broker.View) (string, bool) { return v.Time, v.Time != "" }
	case "dataschema", "datacontenttype":
		return func(v *broker.View) (string, bool) { return v.Attribute(name) }
	}
	return extension(name)
}

func extension(name string) attribute {
	return func(v *broker.View) (string, bool) {
		for i := range v.Extensions {
			if v.Extensions[i].Name == name {
				return v.Extensions[i].Value, true
			}
		}
		return "", false
	}
}

// always tells whether every event has an attribute.
func always(name string) bool {
	return name == "id" || name == "source" || name == "specversion" || name == "type"
}
