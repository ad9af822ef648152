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

// maxInterned limits the names that an encoder remembers. Extension names come from code and
// configuration, so there are few. A publisher that makes up names causes one allocation for each
// name and does not fill the memory.
const maxInterned = 1024

// encoder writes views as records in binary mode. It belongs to one producer
// and is not safe for concurrent use.
//
// The key of a header is ce_<name>, but a view holds only the name, so an encoder remembers the
// keys that it has built. The alternative, a field for the prefix in [wire.Header], needs no
// memory. But then each reader of a header must join two fields. A reader that does not join them
// would silently lose an attribute.
type encoder struct {
	keys   map[string]string // name → ce_<name>
	recent []string          // key of the i-th extension of the last event, because most events of a publisher have the same extensions
}

// encode appends the event's headers to dst, which the caller may reuse for the next record. The
// results point into v. encode does not check v: see [View.Validate].
func (e *encoder) encode(v *View, dst []wire.Header) (key, value []byte, headers []wire.Header) {
	dst = append(dst,
		wire.Header{Key: "ce_specversion", Value: toBytes(specVersion)},
		wire.Header{Key: "ce_id", Value: toBytes(v.ID)},
		wire.Header{Key: "ce_source", Value: toBytes(v.Source)},
		wire.Header{Key: "ce_type", Value: toBytes(v.Type)})
	dst = appendOptional(dst, "ce_subject", v.Subject)
	dst = appendOptional(dst, "ce_time", v.Time)
	dst = appendOptional(dst, "ce_dataschema", v.DataSchema)
	dst = appendOptional(dst, headerContentType, v.DataContentType)
	for i := range v.Extensions {
		x := &v.Extensions[i]
		dst = append(dst, wire.Header{Key: e.key(i, x.Name), Value: toBytes(x.Value)})
	}
	return v.recordKey(), v.Data, append(dst, v.Foreign...)
}

func appendOptional(dst []wire.Header, key, value string) []wire.Header {
	if value == "" {
		return dst
	}
	return append(dst, wire.Header{Key: key, Value: toBytes(value)})
}

// key returns ce_<name> for the i-th extension of an event.
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
			e.keys[key[len(headerPrefix):]] = key // not the variable name, which may point into fetched bytes
		}
	}
	if i < len(e.recent) {
		e.recent[i] = key
	} else if i == len(e.recent) && i < maxHeaders {
		e.recent = append(e.recent, key)
	}
	return key
}

// decodeRecord reads the event of a record into v, and resets v first. Strings and data of v point
// into the record. A record in binary mode causes no allocation once v's slices have grown.
//
// It makes only the structural checks that keep later code safe: required attributes, UTF-8, names,
// limits, the shape of time. [View.Validate] checks more, for publishers. If a reader made all
// these checks, events that every other consumer can read would become dead letters.
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

// contentTypeOf returns the last content-type header, which determines the mode.
func contentTypeOf(headers []wire.Header) string {
	for i := len(headers) - 1; i >= 0; i-- {
		if isContentType(headers[i].Key) {
			return toText(headers[i].Value)
		}
	}
	return ""
}

// decodeBinaryRecord is the hot loop, for lower-case names and text. decodeOddHeader handles all
// other headers. plain is the result of allPlain.
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
		if field := v.coreField(name); field != nil {
			*field = toText(h.Value)
		} else if name == attrSpecVersion {
			version = toText(h.Value)
		} else if nameFault(name) == nil {
			v.setExtension(name, toText(h.Value))
		} else if err := v.decodeOddHeader(h, &version); err != nil {
			return err
		}
	}
	if contentType != "" {
		if !plain && !isText(toBytes(contentType)) {
			return attributeError(attrContentType, textFault(toBytes(contentType)))
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

// decodeOddHeader handles foreign headers, upper case and faults. A null value is an unset
// attribute, like null in the JSON format.
func (v *View) decodeOddHeader(h *wire.Header, version *string) error {
	name, ok := attributeOf(h.Key)
	switch {
	case !ok:
		v.keepHeader(h)
		return nil
	case h.Value == nil:
		return nil
	case !isText(h.Value):
		return attributeError(name, textFault(h.Value))
	case name == attrSpecVersion:
		*version = toText(h.Value)
		return nil
	}
	return v.set(name, toText(h.Value))
}

// keepHeader keeps a header that is not an attribute; content-type is an attribute.
func (v *View) keepHeader(h *wire.Header) {
	if !isContentType(h.Key) {
		v.Foreign = append(v.Foreign, *h)
	}
}

// attributeOf returns the attribute that a header carries. The binding does not say whether case
// matters; sdk-go ignores case, and so do we. Only an upper-case name costs an allocation.
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

// lower converts ASCII letters only. Unicode's lower case would turn the Kelvin sign into 'k', so
// that two different names would become one attribute.
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

// set stores a value, which is known to be text, in the field or extension of its name.
func (v *View) set(name, value string) error {
	if field := v.coreField(name); field != nil {
		*field = value
		return nil
	}
	if err := nameFault(name); err != nil {
		return attributeError(name, err)
	}
	v.setExtension(name, value)
	return nil
}

// allPlain reports whether all values are ASCII of limited length, as nearly all values are. One
// pass over all values, eight bytes at a time, takes half the time of utf8.Valid for each value.
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

// isText reports whether a value may be an attribute: UTF-8 of limited length.
func isText(b []byte) bool { return len(b) <= maxAttribute && utf8.Valid(b) }

// textFault returns the reason why isText refused a value.
func textFault(b []byte) error {
	if len(b) > maxAttribute {
		return errLong
	}
	return errUTF8
}

var errTime = errors.New("is no RFC 3339 time such as 2026-01-31T15:04:05Z")

// looksLikeTime checks the shape of an RFC 3339 time. This check is cheap enough for the hot path,
// and it is sufficient for comparing times as text.
func looksLikeTime(s string) bool {
	return len(s) >= len("2006-01-02T15:04:05Z") &&
		s[4] == '-' && s[7] == '-' && s[10]|0x20 == 't' && s[13] == ':' && s[16] == ':'
}

// decodeStructuredRecord reads the value as a JSON event. The binding also allows ce_ headers; the
// value takes precedence.
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
			v.keepHeader(&h)
		}
	}
	return nil
}

// formatFault refuses event formats other than JSON. It also refuses batches, which the Kafka
// binding does not have.
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

// mediaType returns the type and the parameters of a content type. The type is in lower case.
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
