package lineage

import (
	"errors"
	"fmt"
	"strings"

	"tidemill.dev"
	"tidemill.dev/api"
)

// Errors of what is asked for.
var (
	ErrRef     = errors.New("names nothing whose why can be told")
	ErrUnknown = errors.New("it is not known")
)

// ref is a thing's name, taken apart.
type ref struct {
	kind api.GraphKind
	of   string // a run's id; a model; a dataset, perhaps empty; an event's source, perhaps empty
	at   string // behind the @ or the #
}

func (r ref) String() string {
	switch {
	case r.kind == api.KindEvent && r.of != "":
		return string(r.kind) + "/" + strings.NewReplacer("%", "%25", "#", "%23").Replace(r.of) + "#" + r.at
	case r.kind == api.KindEvent, r.kind == api.KindCommit && r.of == "":
		return string(r.kind) + "/" + r.at
	case r.at != "":
		return string(r.kind) + "/" + r.of + "@" + r.at
	}
	return string(r.kind) + "/" + r.of
}

// A source may have the # that ends it; such a one is written as in an address.
func sourceOf(text string) string { return strings.NewReplacer("%23", "#", "%25", "%").Replace(text) }

func runRef(id string) ref             { return ref{api.KindRun, id, ""} }
func commitRef(dataset, id string) ref { return ref{api.KindCommit, dataset, id} }
func eventRef(c tidemill.Cause) ref    { return ref{api.KindEvent, c.Source, c.ID} }
func modelRef(model, which string) ref { return ref{api.KindModel, model, which} }

// longest is more than any name has.
const longest = 4096

// parseRef reads what a person has written.
func parseRef(text string) (ref, error) {
	kind, name, found := strings.Cut(text, "/")
	if !found || name == "" || len(text) > longest {
		return ref{}, refused(text)
	}
	switch k := api.GraphKind(kind); k {
	case api.KindRun:
		return parseRun(name)
	case api.KindModel:
		model, which, err := tidemill.CutVersionName(name)
		if err != nil {
			return ref{}, fmt.Errorf("%w: %w", ErrRef, err)
		}
		return modelRef(model, which), nil
	case api.KindCommit:
		return parseCommit(name)
	case api.KindEvent:
		if source, id, both := strings.Cut(name, "#"); both && source != "" && id != "" {
			return eventRef(tidemill.Cause{Source: sourceOf(source), ID: id}), nil
		}
		return ref{k, "", name}, nil
	}
	return ref{}, refused(text)
}

func refused(text string) error {
	return fmt.Errorf("%q %w: give run/ID, model/NAME or model/NAME@VERSION, commit/DATASET@COMMIT, or event/ID", shown(text), ErrRef)
}

// shown is a name as errors tell it.
func shown(text string) string {
	const most = 80
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// shortestID is how much of a run's id has to be given.
const shortestID = 6

func parseRun(id string) (ref, error) {
	if len(id) < shortestID || strings.ContainsFunc(id, func(r rune) bool { return r < '2' || r > '7' && r < 'a' || r > 'z' }) {
		return ref{}, fmt.Errorf("%q %w: give the id of a run, or six letters or more of its beginning", shown("run/"+id), ErrRef)
	}
	return runRef(id), nil
}

// parseCommit takes the last @ for the one before the commit: a dataset's name
// may have others.
func parseCommit(name string) (ref, error) {
	i := strings.LastIndexByte(name, '@')
	dataset, at := name[:max(i, 0)], name[i+1:]
	if i >= 0 {
		if err := tidemill.CheckDataset(dataset); err != nil {
			return ref{}, fmt.Errorf("%q %w: the dataset %w", shown("commit/"+name), ErrRef, err)
		}
	}
	if err := tidemill.CheckLabel(at); err != nil {
		return ref{}, fmt.Errorf("%q %w: the commit or branch %w", shown("commit/"+name), ErrRef, err)
	}
	return commitRef(dataset, at), nil
}
