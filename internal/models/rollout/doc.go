// Package rollout brings a change of a recipe to its keys step by step, and rolls them back if the fleet gets worse.
// Read [DESIGN.md](internal/models/rollout/DESIGN.md) first.
package rollout
