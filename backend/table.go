package backend

import "reflect"

// Table holds a row for each type of op: what one backend knows of the op, such as the
// function that binds it. A backend fills its table from package variables in the files
// that implement the ops:
//
//	var _ = table.Add(&backend.Rope{}, row{…})
//
// The zero Table is empty and ready to use.
type Table[Row any] struct{ rows map[reflect.Type]Row }

// Add sets the row of op's type. It panics if there is one already.
func (t *Table[Row]) Add(op Op, row Row) struct{} {
	key := reflect.TypeOf(op)
	if _, ok := t.rows[key]; ok {
		panic("backend: two rows for " + opType(op))
	}
	if t.rows == nil {
		t.rows = map[reflect.Type]Row{}
	}
	t.rows[key] = row
	return struct{}{}
}

// Of returns the row of op's type, or false.
func (t *Table[Row]) Of(op Op) (row Row, ok bool) {
	row, ok = t.rows[reflect.TypeOf(op)]
	return row, ok
}

// Missing returns the names of the ops of this package that have no row: nil where the
// backend implements every op.
func (t *Table[Row]) Missing() (names []string) {
	for _, op := range Ops() {
		if _, ok := t.Of(op); !ok {
			names = append(names, opType(op))
		}
	}
	return names
}
