//! Runs scripts on a [`Keyspace`] in Lua 5.1, and converts between Lua's types and replies as Redis does.

use std::collections::HashMap;

use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value};

use crate::keyspace::{Keyspace, Reply, number};

/// A Lua state and its keys. Scripts run atomically, because they borrow the engine mutably.
pub struct Interpreter {
    lua: Lua,
    /// From the prelude: runs a script and catches its errors.
    run: Function,
    compiled: HashMap<&'static str, Function>,
}

impl Interpreter {
    pub fn new() -> mlua::Result<Self> {
        // Without `io` and `os`. TIME is a script's only clock, so that a simulated run does not depend on the
        // machine's.
        let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH, LuaOptions::default())?;
        lua.set_app_data(Keyspace::default());
        let run = lua.load(include_str!("prelude.lua")).set_name("=prelude").call(lua.create_function(command)?)?;
        Ok(Self { lua, run, compiled: HashMap::new() })
    }

    pub fn keyspace<T>(&self, look: impl FnOnce(&mut Keyspace) -> T) -> Option<T> {
        self.lua.app_data_mut::<Keyspace>().map(|mut keyspace| look(&mut keyspace))
    }

    /// EVAL. As in Redis, a Lua error becomes an error reply.
    pub fn eval(&mut self, name: &'static str, source: &str, keys: &[&[u8]], args: &[&[u8]]) -> Reply {
        self.try_eval(name, source, keys, args).unwrap_or_else(|error| Reply::Error(format!("ERR {error}")))
    }

    fn try_eval(&mut self, name: &'static str, source: &str, keys: &[&[u8]], args: &[&[u8]]) -> mlua::Result<Reply> {
        let script = self.compiled(name, source)?;
        let globals = self.lua.globals();
        // Raw: like Redis, the prelude guards the globals against scripts, and this is not a script.
        globals.raw_set("KEYS", self.texts(keys)?)?;
        globals.raw_set("ARGV", self.texts(args)?)?;
        to_reply(self.run.call(script)?)
    }

    fn texts(&self, texts: &[&[u8]]) -> mlua::Result<Table> {
        let table = self.lua.create_table_with_capacity(texts.len(), 0)?;
        for text in texts {
            table.raw_push(self.lua.create_string(text)?)?;
        }
        Ok(table)
    }

    fn compiled(&mut self, name: &'static str, source: &str) -> mlua::Result<Function> {
        if let Some(script) = self.compiled.get(name) {
            return Ok(script.clone());
        }
        // Lua does not know the line `#!lua flags=…`. Keep its line end, so that line numbers stay right.
        let body = if source.starts_with("#!") { source.find('\n').map_or("", |end| &source[end..]) } else { source };
        let script = self.lua.load(body).set_name(format!("={name}.lua")).into_function()?;
        self.compiled.insert(name, script.clone());
        Ok(script)
    }
}

/// `redis.pcall`.
fn command(lua: &Lua, args: MultiValue) -> mlua::Result<Value> {
    let words: Option<Vec<Vec<u8>>> = args.into_iter().map(word).collect();
    let reply = match words.filter(|words| !words.is_empty()) {
        // Redis refuses nil, tables and booleans as arguments instead of converting them.
        None => Reply::Error("ERR Lua redis lib command arguments must be strings or integers".into()),
        Some(words) => match lua.app_data_mut::<Keyspace>() {
            Some(mut keyspace) => keyspace.execute(&words),
            None => Reply::Error("ERR the keys are in use".into()),
        },
    };
    to_lua(lua, reply)
}

/// An argument of a command. A number keeps all its digits here, while `..` and `tostring` round it to 14.
fn word(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        Value::Number(float) => Some(number(float).into_bytes()),
        _ => None,
    }
}

fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    let single = |field: &str, text: &str| {
        let table = lua.create_table()?;
        table.raw_set(field, text)?;
        Ok(Value::Table(table))
    };
    match reply {
        // Lua 5.1 has only doubles: integers above 2^53 lose digits, as in Redis.
        Reply::Int(number) => Ok(Value::Number(number as f64)),
        Reply::Bulk(bytes) => lua.create_string(bytes).map(Value::String),
        // Redis returns `false` to scripts, because a nil inside a list would end it.
        Reply::Nil => Ok(Value::Boolean(false)),
        // A status and an error are tables with one field. `redis.call` raises the one with `err`.
        Reply::Ok => single("ok", "OK"),
        Reply::Error(text) => single("err", &text),
        Reply::List(replies) => {
            let table = lua.create_table_with_capacity(replies.len(), 0)?;
            for (index, reply) in replies.into_iter().enumerate() {
                table.raw_set(index + 1, to_lua(lua, reply)?)?;
            }
            Ok(Value::Table(table))
        }
    }
}

/// Cuts off fractions. `true` becomes 1, `false` becomes nil, and a list ends at its first nil.
fn to_reply(value: Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::Integer(number) => Reply::Int(number),
        Value::Number(float) => Reply::Int(float as i64),
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => {
            // `err`, then `ok`, then the elements: Redis looks in this order.
            if let Value::String(text) = table.raw_get("err")? {
                return Ok(Reply::Error(text.to_string_lossy()));
            }
            if let Value::String(_) = table.raw_get("ok")? {
                return Ok(Reply::Ok);
            }
            let mut list = Vec::new();
            // Do not use the table's length, which Lua leaves undefined for a list with a nil. Redis stops at the
            // first nil.
            for index in 1.. {
                match table.raw_get(index)? {
                    Value::Nil => break,
                    element => list.push(to_reply(element)?),
                }
            }
            Reply::List(list)
        }
        _ => Reply::Nil,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eval(source: &'static str) -> Reply {
        Interpreter::new().unwrap().eval(source, source, &[b"k"], &[b"5"])
    }

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.as_bytes().to_vec())
    }

    fn refused(source: &'static str) -> String {
        match eval(source) {
            Reply::Error(text) => text,
            other => panic!("{source}: {other:?}"),
        }
    }

    /// All of these agree with redis-server 7.0.15. tests/it/differential.rs compares with the installed version.
    #[test]
    fn values_are_converted_between_redis_and_lua_as_redis_does() {
        assert_eq!(eval("return {1, nil, 3}"), Reply::List(vec![Reply::Int(1)]));
        assert_eq!(eval("return {3.99, 'x', true, {2}}"), {
            Reply::List(vec![Reply::Int(3), bulk("x"), Reply::Int(1), Reply::List(vec![Reply::Int(2)])])
        });
        assert_eq!(eval("return false"), Reply::Nil);
        assert_eq!(eval("return redis.call('GET', KEYS[1])"), Reply::Nil);
        assert_eq!(eval("return redis.call('SET', KEYS[1], 1795200000000123) and redis.call('GET', KEYS[1])"), {
            bulk("1795200000000123")
        });
        assert_eq!(eval("return tostring(1795200000000023)"), bulk("1.7952e+15"));
        assert_eq!(eval("return type(redis.call('EXISTS', 'x')) .. ARGV[1] + 1"), bulk("number6"));
    }

    #[test]
    fn errors_are_replies_with_a_code_and_pcall_catches_them() {
        assert!(refused("redis.call('RPUSH', 'k', 1) return redis.call('GET', 'k')").starts_with("WRONGTYPE "));
        assert_eq!(eval("redis.call('RPUSH', 'k', 1) return redis.pcall('GET', 'k').err and 'caught'"), bulk("caught"));
        assert!(refused("return nil + 1").starts_with("ERR "));
        assert!(refused("return undefined").contains("nonexistent global variable 'undefined'"));
        assert!(refused("made = 1").contains("global variable 'made'"));
        assert_eq!(refused("error({ err = 'WRONGTYPE mine' })"), "WRONGTYPE mine");
        assert!(refused("return redis.call('NONSENSE')").starts_with("ERR Unknown Redis command"));
        assert!(refused("return redis.call('GET')").starts_with("ERR Wrong number of args"));
        assert!(refused("return redis.call('GET', {})").contains("must be strings or integers"));
    }
}
