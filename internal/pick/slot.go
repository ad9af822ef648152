package pick

import "tidemill.dev/internal/infer/tensor"

// slot reads the value at i into its slot's row, and returns where it ends, -1 if
// it is of another kind.
func (r *reader) slot(index, i int) int {
	s, t := &r.plan.slots[index], &r.in[index]
	if i >= len(r.b) {
		return -1
	}
	r.begin(s, t)
	if r.b[i] != '[' {
		return r.single(t, i)
	}
	if s.flat(r.b, i) {
		return r.elements(t, i, width(t), nil)
	}
	end := r.array(t, 1, i)
	if end >= 0 && s.open && r.row == 0 {
		resize(t, r.at)
	}
	return end
}

// begin finds the row's place. The first row forgets what sizes a row before it
// has said: that was not read to its end.
func (r *reader) begin(s *slot, t *tensor.Tensor) {
	if s.open && r.row == 0 {
		copy(t.Shape[1:], s.Shape[1:])
	}
	n := max(width(t), 0)
	r.at = r.row * n
	if r.at+n > size(t) {
		resize(t, r.at+n)
	}
}

// single reads a value that is no array, which is as good as an array of itself.
func (r *reader) single(t *tensor.Tensor, i int) int {
	if !alone(t) {
		return -1
	}
	return value(r.b, i, t, r.at)
}

// alone tells whether a row is one value, or may be: then it is from now on.
func alone(t *tensor.Tensor) bool {
	for j, n := range t.Shape[1:] {
		if n < 0 {
			t.Shape[j+1] = 1
		} else if n != 1 {
			return false
		}
	}
	if size(t) == 0 {
		resize(t, 1) // the first row has just said it
	}
	return true
}

// flat tells whether an array holds the values of all dimensions in a row, or the
// only one of none.
func (s *slot) flat(b []byte, i int) bool {
	i = skipSpace(b, i+1)
	return len(s.Shape) == 1 || len(s.Shape) > 2 && !s.open && i < len(b) && b[i] != '['
}

// array reads one dimension of a slot, and those below it.
func (r *reader) array(t *tensor.Tensor, dim, i int) int {
	if dim == len(t.Shape)-1 {
		return r.elements(t, i, t.Shape[dim], &t.Shape[dim])
	}
	n := 0
	i, more := enter(r.b, i, ']', 1)
	for ; more; n++ {
		if i >= len(r.b) || r.b[i] != '[' || t.Shape[dim] >= 0 && n == t.Shape[dim] {
			return -1
		}
		if i = r.array(t, dim+1, i); i < 0 {
			return -1
		}
		i, more = next(r.b, i, ']')
	}
	return settle(&t.Shape[dim], n, i)
}

// settle holds a dimension to its size, or says it.
func settle(size *int, n, end int) int {
	if *size < 0 {
		*size = n
	}
	if *size != n {
		return -1
	}
	return end
}

// elements reads an array of want values, of any number if that is negative.
func (r *reader) elements(t *tensor.Tensor, i, want int, size *int) int {
	i, more := enter(r.b, i, ']', 1)
	read := 0
	for more {
		limit := r.at + want - read
		if want < 0 {
			limit = r.grown(t)
		}
		if limit == r.at {
			return -1
		}
		var n int
		if n, i = values(r.b, i, t, r.at, limit); i < 0 {
			return -1
		}
		r.at, read = r.at+n, read+n
		more = r.b[i-1] == ','
	}
	if want < 0 {
		return settle(size, read, i)
	}
	if read != want {
		return -1
	}
	return i
}

// grown makes room for more values than there is place for, and says how many
// there is then.
func (r *reader) grown(t *tensor.Tensor) int {
	if r.at == room(t) {
		resize(t, max(16, 2*r.at))
	}
	resize(t, room(t))
	return room(t)
}
