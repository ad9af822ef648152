package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"mime"
	"strings"
	"unicode/utf8"

	"tidemill.dev/broker/internal/wire"
)

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

// decodeRecord reads the event that a record carries into v, which it empties
// first. Strings and data of v point into the record. A record in binary mode
// allocates nothing once v's slices have grown.
//
// The checks are the structural ones that keep later code safe: required
// attributes, UTF-8, names, limits, the outline of time. What a publisher must
// keep beyond that is [View.Validate]'s; a reader that refused it would send
// events to the dead letters which every other consumer can read.
func decodeRecord(r *wire.Record, v *View) error {
	v.reset()
	if len(r.Headers) > maxHeaders {
		return fmt.Errorf("record has %d headers; at most %d are read", len(r.Headers), maxHeaders)
	}
	contentType := contentTypeOf(r.Headers)
	if hasPrefixFold(contentType, structuredPrefix) {
		return v.decodeStructuredRecord(r, contentType)
	}
	return v.decodeBinaryRecord(r, contentType, allPlain(r.Headers))
}

// contentTypeOf is the last content-type header: the mode is known only with it.
func contentTypeOf(headers []wire.Header) string {
	for i := len(headers) - 1; i >= 0; i-- {
		if isContentType(headers[i].Key) {
			return text(headers[i].Value)
		}
	}
	return ""
}

// decodeBinaryRecord is the hot loop: lower-case names and text. All else leaves
// it for decodeOddHeader. plain is what allPlain found.
func (v *View) decodeBinaryRecord(r *wire.Record, contentType string, plain bool) error {
	version := ""
	for i := range r.Headers {
		h := &r.Headers[i]
		if len(h.Key) <= len(headerPrefix) || h.Key[:len(headerPrefix)] != headerPrefix || h.Value == nil || !plain && !isText(h.Value) {
			if err := v.decodeOddHeader(h, &version); err != nil {
				return err
			}
			continue
		}
		name := h.Key[len(headerPrefix):]
		if field := v.core(name); field != nil {
			*field = text(h.Value)
		} else if name == attrSpecVersion {
			version = text(h.Value)
		} else if nameFault(name) == nil {
			v.setExtension(name, text(h.Value))
		} else if err := v.decodeOddHeader(h, &version); err != nil {
			return err
		}
	}
	if contentType != "" {
		if !plain && !isText(raw(contentType)) {
			return attributeError(attrContentType, textFault(raw(contentType)))
		}
		v.DataContentType = contentType
	}
	v.Data, v.Key = r.Value, r.Key
	return v.decodedFault(version)
}

func (v *View) decodedFault(version string) error {
	if version != specVersion {
		return versionFault(version)
	}
	if v.Time != "" && !looksLikeTime(v.Time) {
		return attributeError("time", errTime)
	}
	return v.requiredFault()
}

// decodeOddHeader takes what the hot loop leaves: foreign headers, upper case,
// faults. A null value is an unset attribute, as null is in the JSON format.
func (v *View) decodeOddHeader(h *wire.Header, version *string) error {
	name, ok := attributeOf(h.Key)
	switch {
	case !ok:
		v.carry(h)
		return nil
	case h.Value == nil:
		return nil
	case !isText(h.Value):
		return attributeError(name, textFault(h.Value))
	case name == attrSpecVersion:
		*version = text(h.Value)
		return nil
	}
	return v.set(name, text(h.Value))
}

// carry keeps a header that is no attribute; content-type is one.
func (v *View) carry(h *wire.Header) {
	if !isContentType(h.Key) {
		v.Foreign = append(v.Foreign, *h)
	}
}

// attributeOf is the attribute that a header carries. The binding is silent on
// case, sdk-go ignores it, and so do we; only an upper-case name pays for it.
func attributeOf(key string) (name string, ok bool) {
	if len(key) < len(headerPrefix) || key[0]|0x20 != 'c' || key[1]|0x20 != 'e' || key[2] != '_' {
		return "", false
	}
	name = key[len(headerPrefix):]
	if nameFault(name) == nil {
		return name, true
	}
	return lower(name), true
}

// lower is ASCII's lower case and no more: Unicode's would make a 'k' of the
// Kelvin sign, and so one attribute of two.
func lower(name string) string {
	for i := range len(name) {
		if name[i] >= utf8.RuneSelf {
			return name
		}
	}
	return strings.ToLower(name)
}

func isContentType(key string) bool {
	return len(key) == len(headerContentType) && (key == headerContentType || strings.EqualFold(key, headerContentType))
}

// set puts a value that is known to be text where its name belongs.
func (v *View) set(name, value string) error {
	if field := v.core(name); field != nil {
		*field = value
		return nil
	}
	if err := nameFault(name); err != nil {
		return attributeError(name, err)
	}
	v.setExtension(name, value)
	return nil
}

// allPlain reports whether all values are ASCII of bounded length, as nearly all
// are. One look at all of them, eight bytes at a time, costs half of a call of
// utf8.Valid for each.
func allPlain(headers []wire.Header) bool {
	var bits uint64
	for i := range headers {
		b := headers[i].Value
		if len(b) > maxAttribute {
			return false
		}
		switch n := len(b); {
		case n >= 8:
			for j := 0; j <= n-8; j += 8 {
				bits |= binary.LittleEndian.Uint64(b[j:])
			}
			bits |= binary.LittleEndian.Uint64(b[n-8:])
		case n >= 4:
			bits |= uint64(binary.LittleEndian.Uint32(b) | binary.LittleEndian.Uint32(b[n-4:]))
		default:
			for _, c := range b {
				bits |= uint64(c)
			}
		}
	}
	return bits&0x8080808080808080 == 0
}

// isText reports whether a value may be an attribute's: UTF-8 of bounded length.
func isText(b []byte) bool { return len(b) <= maxAttribute && utf8.Valid(b) }

// textFault says why isText refused a value.
func textFault(b []byte) error {
	if len(b) > maxAttribute {
		return errLong
	}
	return errUTF8
}

var errTime = errors.New("is no RFC 3339 time such as 2026-01-31T15:04:05Z")

// looksLikeTime checks the outline of an RFC 3339 time, which is all that the
// hot path can afford and enough to compare times as text.
func looksLikeTime(s string) bool {
	return len(s) >= len("2006-01-02T15:04:05Z") &&
		s[4] == '-' && s[7] == '-' && s[10]|0x20 == 't' && s[13] == ':' && s[16] == ':'
}

// decodeStructuredRecord reads the value as a JSON event. The binding allows
// ce_ headers beside it; the value rules.
func (v *View) decodeStructuredRecord(r *wire.Record, contentType string) error {
	if err := formatFault(contentType); err != nil {
		return err
	}
	if err := UnmarshalStructured(r.Value, v); err != nil {
		return err
	}
	v.Key = r.Key
	for _, h := range r.Headers {
		if _, ok := attributeOf(h.Key); !ok {
			v.carry(&h)
		}
	}
	return nil
}

// formatFault refuses event formats other than JSON, and batches, which the
// Kafka binding does not have.
func formatFault(contentType string) error {
	if hasPrefixFold(contentType, structuredBatch) {
		return fmt.Errorf("content-type %s: a record carries one event, never a batch; publish each event as a record", clip(contentType))
	}
	media, _, _ := strings.Cut(contentType, ";")
	if strings.EqualFold(strings.TrimSpace(media), structuredJSON) {
		return nil
	}
	return fmt.Errorf("content-type %s: of the structured formats only %s is read", clip(contentType), structuredJSON)
}

// mediaType is the type of a content type without its parameters, in lower case.
func mediaType(contentType string) (string, map[string]string) {
	if contentType == "" || contentType == contentTypeJSON {
		return contentTypeJSON, nil
	}
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		media, _, _ = strings.Cut(contentType, ";")
		return strings.ToLower(strings.TrimSpace(media)), nil
	}
	return media, params
}
