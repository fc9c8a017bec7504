package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
)

// A mutant is one change to one file: the bytes from start to end give way to text.
type mutant struct {
	file         string // its absolute path
	line, column int
	start, end   int
	text         string
}

// opposites are the operators that are swapped.
var opposites = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL, token.REM: token.MUL,
	token.AND: token.OR, token.OR: token.AND, token.SHL: token.SHR, token.SHR: token.SHL,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
	token.MUL_ASSIGN: token.QUO_ASSIGN, token.QUO_ASSIGN: token.MUL_ASSIGN,
	token.OR_ASSIGN: token.AND_ASSIGN, token.AND_ASSIGN: token.OR_ASSIGN,
	token.INC: token.DEC, token.DEC: token.INC, token.BREAK: token.CONTINUE, token.CONTINUE: token.BREAK,
}

// mutants lists every mutant of a Go file in the order of the text. A generated file has none, and neither have methods
// that only describe (String, Error) and the texts of errors.
func mutants(path string) ([]mutant, []byte, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, source, parser.ParseComments)
	if err != nil {
		return nil, nil, err
	}
	if ast.IsGenerated(file) {
		return nil, source, nil
	}
	c := collector{path: path, source: source, fset: fset}
	ast.Inspect(file, c.visit)
	return c.all, source, nil
}

// collector gathers the mutants of one file.
type collector struct {
	path   string
	source []byte
	fset   *token.FileSet
	all    []mutant
}

// textOf returns the text of a node as it stands in the file.
func (c *collector) textOf(n ast.Node) string {
	return string(c.source[c.fset.Position(n.Pos()).Offset:c.fset.Position(n.End()).Offset])
}

// add notes one mutant. The new text has as many lines as the old one, so that what a test says of lines is true.
func (c *collector) add(from, to token.Pos, text string) {
	begin, end := c.fset.Position(from), c.fset.Position(to)
	text += strings.Repeat("\n", max(0, end.Line-begin.Line-strings.Count(text, "\n")))
	c.all = append(c.all, mutant{c.path, begin.Line, begin.Column, begin.Offset, end.Offset, text})
}

// swap notes the mutant that has the opposite of the operator at a position, if it has one.
func (c *collector) swap(at token.Pos, operator token.Token) {
	if other, ok := opposites[operator]; ok {
		c.add(at, at+token.Pos(len(operator.String())), other.String())
	}
}

// negate notes the mutant of a condition that holds where the condition does not. A comparison for equality is swapped
// already.
func (c *collector) negate(condition ast.Expr) {
	if b, ok := condition.(*ast.BinaryExpr); condition == nil || ok && (b.Op == token.EQL || b.Op == token.NEQ) {
		return
	}
	c.add(condition.Pos(), condition.End(), "!("+c.textOf(condition)+")")
}

func (c *collector) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if n.Body == nil || n.Recv != nil && (n.Name.Name == "String" || n.Name.Name == "Error") {
			return false
		}
		if len(n.Body.List) > 0 && n.Name.Name != "init" {
			c.add(n.Body.Lbrace, n.Body.Lbrace+1, "{ return "+c.zeros(n.Type.Results)+"; ")
		}
	case *ast.CallExpr:
		switch name := c.textOf(n.Fun); name {
		case "fmt.Errorf", "errors.New", "panic":
			return false
		case "make":
			if len(n.Args) == 3 { // a capacity is no more than a hint
				ast.Inspect(n.Args[1], c.visit)
				return false
			}
		}
	case *ast.IfStmt:
		c.negate(n.Cond)
	case *ast.ForStmt:
		c.negate(n.Cond)
	case *ast.BinaryExpr:
		c.swap(n.OpPos, n.Op)
	case *ast.IncDecStmt:
		c.swap(n.TokPos, n.Tok)
	case *ast.BranchStmt:
		if n.Label == nil {
			c.swap(n.TokPos, n.Tok)
		}
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			c.add(n.Pos(), n.End(), "")
		}
		c.swap(n.TokPos, n.Tok)
	case *ast.ExprStmt:
		if _, ok := n.X.(*ast.CallExpr); ok {
			c.add(n.Pos(), n.End(), "")
		}
	case *ast.DeferStmt, *ast.GoStmt:
		c.add(n.Pos(), n.End(), "")
	case *ast.ReturnStmt:
		if last := len(n.Results) - 1; last >= 0 {
			if name, ok := n.Results[last].(*ast.Ident); ok && name.Name == "err" {
				c.add(name.Pos(), name.End(), "nil")
			}
		}
	case *ast.BasicLit:
		if n.Kind == token.INT {
			c.add(n.Pos(), n.End(), "("+n.Value+" + 1)")
			c.add(n.Pos(), n.End(), "("+n.Value+" - 1)")
		}
	case *ast.Ident:
		switch n.Name {
		case "true":
			c.add(n.Pos(), n.End(), "false")
		case "false":
			c.add(n.Pos(), n.End(), "true")
		}
	}
	return true
}

// zeros returns a zero value for each of the results of a function, with commas between them.
func (c *collector) zeros(results *ast.FieldList) string {
	var all []string
	if results != nil {
		for _, field := range results.List {
			for range max(1, len(field.Names)) {
				all = append(all, "*new("+c.textOf(field.Type)+")")
			}
		}
	}
	return strings.Join(all, ", ")
}

// apply returns the source with the change made.
func (m mutant) apply(source []byte) []byte {
	return append(append(append([]byte(nil), source[:m.start]...), m.text...), source[m.end:]...)
}

// describe says where the change is and what it is: the line as it stands and as the mutant has it.
func (m mutant) describe(root string, source []byte) string {
	begin := strings.LastIndexByte(string(source[:m.start]), '\n') + 1
	end := m.end + strings.IndexByte(string(source[m.end:])+"\n", '\n')
	line := func(text string) string {
		text = strings.Join(strings.Fields(text), " ")
		if len(text) > 100 {
			text = text[:100] + "..."
		}
		if text == "" {
			return "(nothing)"
		}
		return text
	}
	return fmt.Sprintf("%s:%d:%d: %s => %s", strings.TrimPrefix(m.file, root+string(os.PathSeparator)), m.line, m.column,
		line(string(source[begin:end])), line(string(source[begin:m.start])+m.text+string(source[m.end:end])))
}
