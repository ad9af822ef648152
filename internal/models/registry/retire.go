package registry

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tidemill.dev"
)

// Retire ends a model whose key has gone. Versions of runs that began before the
// marks come too late then, whoever brings them. Said again it changes nothing.
func (r *Registrar) Retire(ctx context.Context, model, key, by, reason string, cause tidemill.Cause, asked time.Time, marks []tidemill.Mark) error {
	m, err := r.o.Ledger.Model(ctx, model)
	if err != nil {
		return fmt.Errorf("retire model %s: %w", model, err)
	}
	if retired(m, marks) {
		return nil
	}
	_, _, err = r.put(ctx, &fact{typ: tidemill.TypeModelRetired, id: tidemill.ID("retired", model, cause.Source, cause.ID), source: r.o.Names.Source(byForget),
		model: model, key: key, recipe: m.Recipe, by: by, chain: chain{cause: cause, correlation: cause.ID},
		data: tidemill.ModelRetired{Asked: asked, Reason: reason, Marks: marks}})
	return err
}

// retired reports whether a model is gone already, up to the marks.
func retired(m *tidemill.Model, marks []tidemill.Mark) bool {
	if m.Retired.IsZero() || len(m.Versions) > 0 {
		return false
	}
	return !slices.ContainsFunc(marks, func(at tidemill.Mark) bool {
		return !slices.ContainsFunc(m.Floors, func(f tidemill.Mark) bool { return f.Partition == at.Partition && f.Offset >= at.Offset })
	})
}
