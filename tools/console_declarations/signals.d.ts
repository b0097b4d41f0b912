export class Signal<T> {
  value: T;
  peek(): T;
}
export function signal<T>(value: T): Signal<T>;
export function computed<T>(compute: () => T): Signal<T>;
export function useComputed<T>(compute: () => T): Signal<T>;
