package broker

import "tidemill.dev/broker/internal/wire"

// maxInterned bounds what an encoder remembers. Names of extensions come from
// code and configuration, so few are ever seen; a publisher that invents them
// pays an allocation each instead of filling memory.
const maxInterned = 1024

// encoder writes views as records in binary mode. It belongs to one producer
// and is not safe for concurrent use.
//
// A header's key is ce_<name> and a view holds only the name, so an encoder
// remembers the keys it has built. The alternative, a prefix beside the key in
// [wire.Header], would need no memory, but makes each reader of a header join
// two fields, and a forgotten prefix would be a silent loss of an attribute.
type encoder struct {
	keys   map[string]string // name → ce_<name>
	recent []string          // key of the i-th extension of the last event: publishers repeat themselves
}

// encode appends the event's headers to dst, which may be reused from record to
// record. Everything it returns points into v. It checks nothing: see
// [View.Validate].
func (e *encoder) encode(v *View, dst []wire.Header) (key, value []byte, headers []wire.Header) {
	dst = append(dst,
		wire.Header{Key: "ce_specversion", Value: raw(specVersion)},
		wire.Header{Key: "ce_id", Value: raw(v.ID)},
		wire.Header{Key: "ce_source", Value: raw(v.Source)},
		wire.Header{Key: "ce_type", Value: raw(v.Type)})
	dst = appendOptional(dst, "ce_subject", v.Subject)
	dst = appendOptional(dst, "ce_time", v.Time)
	dst = appendOptional(dst, "ce_dataschema", v.DataSchema)
	dst = appendOptional(dst, headerContentType, v.DataContentType)
	for i := range v.Extensions {
		x := &v.Extensions[i]
		dst = append(dst, wire.Header{Key: e.key(i, x.Name), Value: raw(x.Value)})
	}
	return v.recordKey(), v.Data, append(dst, v.Foreign...)
}

func appendOptional(dst []wire.Header, key, value string) []wire.Header {
	if value == "" {
		return dst
	}
	return append(dst, wire.Header{Key: key, Value: raw(value)})
}

// key is ce_<name> for the i-th extension of an event.
func (e *encoder) key(i int, name string) string {
	if i < len(e.recent) && e.recent[i][len(headerPrefix):] == name {
		return e.recent[i]
	}
	return e.remember(i, name)
}

func (e *encoder) remember(i int, name string) string {
	key, ok := e.keys[name]
	if !ok {
		key = headerPrefix + name
		if e.keys == nil {
			e.keys = make(map[string]string)
		}
		if len(e.keys) < maxInterned {
			e.keys[key[len(headerPrefix):]] = key // not name: it may point into fetched bytes
		}
	}
	if i < len(e.recent) {
		e.recent[i] = key
	} else if i == len(e.recent) && i < maxHeaders {
		e.recent = append(e.recent, key)
	}
	return key
}
