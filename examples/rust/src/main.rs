// SPDX-License-Identifier: Apache-2.0
//
// main.rs - causal attention of 8 heads, 512 rows, head_dim 64, fp32, on the CPU, from Rust.
//
// attn_sys is attn.h as bindgen translates it. Context and Plan own what C gives out, and free it.
// It checks what it computes: V depends on the column alone, so that O is equal to it.

#[allow(dead_code, non_camel_case_types, non_upper_case_globals, non_snake_case)]
#[allow(clippy::all)]
mod attn_sys {
    include!(concat!(env!("OUT_DIR"), "/attn_sys.rs"));
}

use attn_sys::*;
use std::{ffi::CStr, mem::size_of, mem::MaybeUninit, ptr};

/// The sentence of an attn_error.
type Result<T> = std::result::Result<T, String>;

/// Calls a function of attn.h that takes an attn_error last.
fn call(function: impl FnOnce(*mut attn_error) -> attn_status) -> Result<()> {
    let mut why = attn_error { text: [0; 384] };
    match function(&mut why) {
        0 => Ok(()),
        _ => Err(unsafe { CStr::from_ptr(why.text.as_ptr()) }.to_string_lossy().into_owned()),
    }
}

/// A struct of attn.h with its defaults; the `_init` functions there are inline, which bindgen
/// leaves out. (`as _`: size_t is u64 for bindgen before 0.61, usize since.)
macro_rules! with_defaults {
    ($struct:ty, $init:ident) => {{
        let mut value = MaybeUninit::<$struct>::uninit();
        unsafe {
            $init(value.as_mut_ptr(), size_of::<$struct>() as _);
            value.assume_init()
        }
    }};
}

struct Context(*mut attn_context);

impl Context {
    fn cpu() -> Result<Context> {
        let mut context = ptr::null_mut();
        call(|why| unsafe { attn_open(ptr::null(), &mut context, why) })?;
        Ok(Context(context))
    }

    fn plan(&self, problem: &attn_problem) -> Result<Plan<'_>> {
        let mut plan = ptr::null_mut();
        call(|why| unsafe { attn_plan_create(self.0, problem, ptr::null(), &mut plan, why) })?;
        Ok(Plan(plan, self))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        unsafe { attn_close(self.0) }
    }
}

/// Borrows its context, which must outlive it.
struct Plan<'a>(*mut attn_plan, #[allow(dead_code)] &'a Context);

impl Plan<'_> {
    /// Safety: the pointers in `tensors` are those of arrays as large as the plan's problem says.
    unsafe fn forward(&self, tensors: &attn_tensors) -> Result<()> {
        let size = attn_workspace_size(self.0);
        let alignment = attn_workspace_alignment(self.0) as usize;
        let mut workspace = vec![0u8; size as usize + alignment];
        let aligned = workspace.as_mut_ptr().add(workspace.as_ptr().align_offset(alignment));
        call(|why| attn_forward(self.0, tensors, aligned.cast(), size, ptr::null_mut(), why))
    }
}

impl Drop for Plan<'_> {
    fn drop(&mut self) {
        unsafe { attn_plan_destroy(self.0) }
    }
}

fn main() -> Result<()> {
    let (heads, rows, dim) = (8usize, 512usize, 64usize);
    let q: Vec<f32> = (0..heads * rows * dim).map(|i| (i as f32).sin()).collect();
    let v: Vec<f32> = (0..q.len()).map(|i| (i % dim) as f32).collect();
    let mut o = vec![f32::NAN; q.len()];

    let mut problem = with_defaults!(attn_problem, attn_problem_init_sized);
    problem.heads_q = heads as i64;
    problem.seq_q = rows as i64;
    problem.seq_kv = rows as i64;
    problem.head_dim = dim as i64;
    problem.causal = attn_causal_ATTN_CAUSAL_TOP_LEFT;
    let mut tensors = with_defaults!(attn_tensors, attn_tensors_init_sized);
    tensors.q = q.as_ptr().cast();
    tensors.k = q.as_ptr().cast();
    tensors.v = v.as_ptr().cast();
    tensors.o = o.as_mut_ptr().cast();

    let context = Context::cpu()?;
    unsafe { context.plan(&problem)?.forward(&tensors)? };
    let worst = o.iter().zip(&v).map(|(o, v)| (o - v).abs()).fold(0.0, f32::max);
    if o.iter().any(|o| o.is_nan()) || worst > 1e-3 {
        return Err(format!("O is off by {worst}"));
    }

    problem.head_dim = 0; // errors are values, with a sentence
    println!("{}", context.plan(&problem).err().ok_or("head_dim 0 was accepted")?);
    println!("ok, largest error {worst:e}");
    Ok(())
}
