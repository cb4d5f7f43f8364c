package backend_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

// Ops lists exactly the types with a check method, Custom apart.
func TestOpsIsComplete(t *testing.T) {
	declared := map[string]bool{}
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || fn.Name.Name != "check" {
				continue
			}
			if receiver, ok := fn.Recv.List[0].Type.(*ast.StarExpr); ok {
				declared[receiver.X.(*ast.Ident).Name] = true
			}
		}
	}
	delete(declared, "Custom")
	listed := map[string]bool{}
	for _, op := range backend.Ops() {
		listed[reflect.TypeOf(op).Elem().Name()] = true
	}
	require.Equal(t, declared, listed)
	require.Len(t, backend.Ops(), len(listed))
}

// Operands are tagged and all other fields are plain values: rename, clone, dump and
// hash rely on it.
func TestOpFieldsAreOperandsOrPlainValues(t *testing.T) {
	for _, op := range append(backend.Ops(), nil) {
		typ := reflect.TypeFor[backend.Cast]()
		if op != nil {
			typ = reflect.TypeOf(op).Elem()
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			tag, tagged := f.Tag.Lookup("op")
			switch f.Type {
			case reflect.TypeFor[*backend.Tensor](), reflect.TypeFor[[]*backend.Tensor]():
				require.Regexp(t, `^(in|out|inout)(,optional)?(,(in|inout)=[A-Z][a-zA-Z]*)?$`, tag, "%s.%s", typ, f.Name)
			case reflect.TypeFor[[]backend.Cast]():
				require.Equal(t, "cast", tag, "%s.%s", typ, f.Name)
			default:
				require.False(t, tagged, "%s.%s", typ, f.Name)
				require.True(t, f.Type.Comparable(), "%s.%s", typ, f.Name)
			}
			require.True(t, f.IsExported(), "%s.%s", typ, f.Name)
			if _, flag, ok := strings.Cut(tag, "="); ok {
				switchField, found := typ.FieldByName(flag)
				require.True(t, found && switchField.Type.Kind() == reflect.Bool, "%s.%s", typ, f.Name)
			}
		}
	}
}

// An op without its operands is an error of one line, not a panic.
func TestEmptyOpsAreErrors(t *testing.T) {
	for _, op := range backend.Ops() {
		p := backend.NewVars().Program("p")
		p.Add(op)
		require.Error(t, p.Err(), "%T", op)
		require.NotContains(t, p.Err().Error(), "\n")
	}
}
