package runs

// Rest has the foreman start nothing more, for its launcher is about to close:
// what could not be launched any more would count as lost, again and again.
func (f *Foreman) Rest() { f.resting.Store(true) }
