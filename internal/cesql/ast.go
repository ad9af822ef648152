package cesql

// Expr is a part of an expression: one of the types below.
type Expr interface{ expr() }

// Literal is a value: a bool, an int32 or a string.
type Literal struct{ Value any }

// Attribute is the value of an event's attribute.
type Attribute struct{ Name string } // in lower case

// Exists asks whether an event has an attribute.
type Exists struct{ Name string } // in lower case

// Unary is NOT or -. What the language calls the same as NOT (…) is that here:
// !=, <>, NOT LIKE and NOT IN.
type Unary struct {
	Op string
	X  Expr
}

// Binary is one of AND OR XOR = < <= > >= + - * / %.
type Binary struct {
	Op   string
	X, Y Expr
}

// Like compares with a pattern, in which % and _ are as they were written,
// their escapes too.
type Like struct {
	X       Expr
	Pattern string
}

// In asks whether a value is one of a set's, which is not empty.
type In struct {
	X   Expr
	Set []Expr
}

// Call calls a function that exists for as many arguments.
type Call struct {
	Name string // in upper case
	Args []Expr
}

func (*Literal) expr()   {}
func (*Attribute) expr() {}
func (*Exists) expr()    {}
func (*Unary) expr()     {}
func (*Binary) expr()    {}
func (*Like) expr()      {}
func (*In) expr()        {}
func (*Call) expr()      {}
