package broker

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"sort"
	"strings"
)

// span is offsets from first up to, and without, behind.
type span struct{ first, behind int64 }

// What has ended beyond the watermark is committed as metadata beside the
// offset, so that a successor hands out only what had not ended. Kafka keeps
// 4,096 bytes of it; what does not fit is handed out again, which is what
// would happen to all of it without.
const (
	endedPrefix = "ended:"
	maxEnded    = 2048
)

// endedBeyond lists the spans of ended events that lie behind the watermark. A
// dead letter may share the offset of the event before it, if bytes were left
// over behind that: an offset has ended when all that stands there has.
func (w *watermark) endedBeyond(limit int) []span {
	var all []span
	last := int64(-1)
	for i := range w.n {
		at := w.at(i)
		offset := w.after[at] - 1
		if offset <= last || offset < w.next {
			if n := len(all); !w.ended[at] && n > 0 && all[n-1].behind > offset {
				all[n-1].behind = offset
			}
			continue
		}
		last = offset
		if !w.ended[at] {
			continue
		}
		if n := len(all); n > 0 && all[n-1].behind == offset {
			all[n-1].behind++
			continue
		}
		if len(all) == limit {
			break
		}
		all = append(all, span{offset, offset + 1})
	}
	return slices.DeleteFunc(all, func(s span) bool { return s.first >= s.behind })
}

// encodeEnded writes spans relative to the committed offset.
func encodeEnded(offset int64, spans []span) string {
	if len(spans) == 0 {
		return ""
	}
	var b []byte
	for _, s := range spans {
		grown := binary.AppendUvarint(b, uint64(s.first-offset))
		grown = binary.AppendUvarint(grown, uint64(s.behind-s.first))
		if base64.RawStdEncoding.EncodedLen(len(grown)) > maxEnded {
			break
		}
		b, offset = grown, s.behind
	}
	return endedPrefix + base64.RawStdEncoding.EncodeToString(b)
}

// decodeEnded reads what encodeEnded wrote. Metadata of another kind, or a part
// that cannot be read, means that nothing is known to have ended.
func decodeEnded(offset int64, metadata string) []span {
	text, ours := strings.CutPrefix(metadata, endedPrefix)
	b, err := base64.RawStdEncoding.DecodeString(text)
	if !ours || err != nil {
		return nil
	}
	var all []span
	for len(b) > 0 {
		gap, n := binary.Uvarint(b)
		if n <= 0 {
			return nil
		}
		length, m := binary.Uvarint(b[n:])
		if m <= 0 || gap > 1<<40 || length == 0 || length > 1<<40 {
			return nil
		}
		b = b[n+m:]
		first := offset + int64(gap)
		offset = first + int64(length)
		all = append(all, span{first, offset})
	}
	return all
}

// covered tells whether an offset lies in one of the spans, which are sorted.
func covered(spans []span, offset int64) bool {
	i := sort.Search(len(spans), func(i int) bool { return spans[i].behind > offset })
	return i < len(spans) && spans[i].first <= offset
}

// endedSpans is what to commit beside the offset: what ended under former
// readers and under this one. Called with the partition's lock held.
func (p *inPartition) endedSpans() []span {
	all := append(p.mark.endedBeyond(maxEnded), spansFrom(p.ended, p.mark.next)...) // reading may stop within a span
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	return all
}

// endedFrom is what has ended at an offset or behind it, the watermark being
// beyond it perhaps. Called with the partition's lock held.
func (p *inPartition) endedFrom(offset int64) []span {
	all := spansFrom(p.endedSpans(), offset)
	if offset < p.mark.next {
		all = slices.Insert(all, 0, span{offset, p.mark.next})
	}
	return all
}

// spansFrom leaves what of the spans lies at an offset or behind it.
func spansFrom(spans []span, from int64) []span {
	var all []span
	for _, s := range spans {
		if s.first = max(s.first, from); s.first < s.behind {
			all = append(all, s)
		}
	}
	return all
}
